"""The tasks that variants of a comparison answer: files of questions, and those of
lm-evaluation-harness."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from penstock.cli.quantize_request import ComparisonRequest
from penstock.cli.status_line import StatusLine
from penstock.errors import ConfigError
from penstock.evaluate.multiple_choice import Task, score

if TYPE_CHECKING:
    from penstock.config import EngineConfig
    from penstock.evaluate.harness import Harness
    from penstock.evaluate.text_model import TextModel
    from penstock.evaluate.windows import Window
    from penstock.quantize.comparison import Answered
    from penstock.tokenizer import Tokenizer

_SUFFIXES = (".json", ".jsonl")


def is_file(text: str) -> bool:
    """Whether a word of ``--tasks`` means a file, and no name."""
    return Path(text).exists() or "/" in text or text.endswith(_SUFFIXES)


@dataclass(frozen=True)
class Tasks:
    """Questions, ready to be asked."""

    files: tuple[tuple[Task, Sequence[Sequence[Window]]], ...]
    harness: Harness | None

    @classmethod
    def open(cls, asked: ComparisonRequest, tokenizer: Tokenizer) -> Tasks:
        """Raises ConfigError for what is no task, and for questions that cannot be had."""
        found = [Task.read(path) for path in asked.tasks]
        if asked.max_questions is not None:
            found = [
                replace(each, questions=each.questions[: asked.max_questions]) for each in found
            ]
        harness: Harness | None = None
        if asked.named_tasks:
            from penstock.evaluate.harness import Harness

            harness = Harness.open(asked.named_tasks, asked.task_folders, asked.max_questions)
        return cls(tuple((each, each.windows(tokenizer)) for each in found), harness)

    def longest(self, most: int) -> int:
        """Tokens of the longest question with its answer; 0 without files. Raises ConfigError where
        it has more than ``most``."""
        longest = 0
        for task, questions in self.files:
            own = max(len(each.token_ids) for several in questions for each in several)
            if own > most:
                raise ConfigError(
                    f"--tasks {task.name} has a question of {own} tokens with its answer, and "
                    f"the model has {most} positions; leave it out"
                )
            longest = max(longest, own)
        return longest

    def of_files(self, name: str, model: TextModel, status: StatusLine) -> dict[str, Answered]:
        """How a variant does on each file of questions."""
        from penstock.quantize.comparison import Answered

        found: dict[str, Answered] = {}
        for task, windows in self.files:

            def tell(done: int, share: float, task: Task = task) -> None:
                status.show(
                    lambda: (
                        f"comparing: {name}, {task.name}, {done} of {len(task.questions)} "
                        f"questions, {share:.1%} right"
                    )
                )

            own = score(model, task, windows, tell)
            found[task.name] = Answered(
                questions=own.questions,
                metric="accuracy",
                value=own.accuracy,
                standard_error=own.standard_error,
                higher_is_better=True,
                metrics={"accuracy": own.accuracy, "normalized": own.normalized},
            )
        return found

    def of_harness(
        self, name: str, config: EngineConfig, status: StatusLine
    ) -> dict[str, Answered]:
        """How a variant does on each task of lm-evaluation-harness, as it is served."""
        if self.harness is None:
            return {}
        from penstock.api import LLM
        from penstock.quantize.comparison import Answered

        def tell(done: int, count: int) -> None:
            status.show(
                lambda: f"comparing: {name}, lm-evaluation-harness, {done} of {count} texts"
            )

        options = msgspec.structs.asdict(config)
        with LLM(options.pop("model"), require_tokenizer=True, **options) as llm:
            scores = self.harness.scores(llm, tell)
        return {task: Answered(**msgspec.structs.asdict(own)) for task, own in scores.items()}
