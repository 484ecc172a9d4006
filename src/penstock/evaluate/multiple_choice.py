"""Questions with several answers, of which a model takes the one that it thinks most likely.

Answers are scored as lm-evaluation-harness scores tasks such as ARC and HellaSwag
(``output_type: multiple_choice``): by the sum of the log-probabilities of an answer's tokens behind
the question, and once more by that sum divided by the answer's length in characters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np

from penstock.errors import ConfigError
from penstock.evaluate.distribution import token_losses
from penstock.evaluate.perplexity import pieces
from penstock.evaluate.text_model import TextModel, bos_before
from penstock.evaluate.windows import Window
from penstock.tokenizer.tokenizer import Tokenizer

_Words = Annotated[str, msgspec.Meta(min_length=1)]


class Question(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A question, and what may follow it as it stands: a space before an answer is part of it."""

    question: _Words
    answers: Annotated[tuple[_Words, ...], msgspec.Meta(min_length=2)]
    right: Annotated[int, msgspec.Meta(ge=0)]
    """The place of the right one, from 0."""


@dataclass(frozen=True)
class Task:
    """Questions that belong together."""

    name: str
    questions: tuple[Question, ...]

    @classmethod
    def read(cls, path: Path) -> Task:
        """The questions of a file, each a line of JSON. The task's name is the file's,
        without what follows a dot. Raises ConfigError, naming the line at fault."""
        try:
            lines = path.read_bytes().splitlines()
        except OSError as error:
            raise ConfigError(
                f"--tasks {path}: {error.strerror}; a task is a file of questions, each a line, as "
                '{"question": "2 + 2 =", "answers": [" 3", " 4"], "right": 1}'
            ) from error
        found: list[Question] = []
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                question = msgspec.json.decode(line, type=Question)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise ConfigError(f"--tasks {path}, line {number}: {error}") from None
            if question.right >= len(question.answers):
                raise ConfigError(
                    f"--tasks {path}, line {number}: right is {question.right}, and there are "
                    f"{len(question.answers)} answers, from 0"
                )
            found.append(question)
        if not found:
            raise ConfigError(f"--tasks {path} has no questions")
        return cls(path.name.partition(".")[0], tuple(found))

    def windows(self, tokenizer: Tokenizer) -> list[list[Window]]:
        """What is read for each answer of each question, the answer's tokens being those that
        count."""
        return [
            [window_of(tokenizer, q.question, each) for each in q.answers] for q in self.questions
        ]


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """How a model does."""

    questions: int
    accuracy: float
    """The share of questions whose right answer is the most likely one; of several as likely, the
    first counts."""
    normalized: float
    """The same by log-probabilities divided by the characters of answers."""
    standard_error: float
    """That of the accuracy."""


def score(
    model: TextModel,
    task: Task,
    windows: Sequence[Sequence[Window]],
    progress: Callable[[int, float], None] = lambda done, share: None,
) -> Score:
    """Have ``model`` answer, with ``windows`` of its tokenizer; ``progress`` is told how many
    questions are done, and the accuracy so far. Raises ModelError where logits are not numbers."""
    right = normalized = 0
    for done, (question, several) in enumerate(zip(task.questions, windows, strict=True), 1):
        sums = np.array([_log_probability(model, window) for window in several])
        lengths = np.array([len(each) for each in question.answers])
        right += int(sums.argmax() == question.right)
        normalized += int((sums / lengths).argmax() == question.right)
        progress(done, right / done)
    count = len(task.questions)
    share = right / count
    error = float(np.sqrt(share * (1 - share) / max(count - 1, 1)))
    return Score(
        questions=count, accuracy=share, normalized=normalized / count, standard_error=error
    )


def window_of(tokenizer: Tokenizer, question: str, answer: str) -> Window:
    """Question and answer are cut into tokens together; spaces at the question's end are the
    answer's, since tokens begin with spaces."""
    bare = question.rstrip()
    bos = bos_before(tokenizer)
    before = [] if bos is None else [bos]
    whole = tokenizer.encode(question + answer, add_special_tokens=False, parse_special=False)
    own = tokenizer.encode(bare, add_special_tokens=False, parse_special=False)
    # A token may have the end of the one and the beginning of the other; it is the answer's then.
    first = min(len(own), len(whole) - 1)
    return Window((*before, *whole), max(1, len(before) + first))


def _log_probability(model: TextModel, window: Window) -> float:
    losses = [
        token_losses(logits, targets).sum()
        for logits, targets in zip(model.logits(window), pieces(window), strict=True)
    ]
    return -float(sum(losses))
