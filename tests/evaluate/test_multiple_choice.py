"""Questions with several answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from support.checkpoints import tiny_checkpoint
from support.needs import needs_native
from support.quantized_runs import command

from penstock.config import EngineConfig
from penstock.errors import ConfigError
from penstock.evaluate.distribution import token_losses
from penstock.evaluate.multiple_choice import Question, Task, score
from penstock.evaluate.text_model import TextModel
from penstock.evaluate.windows import Window
from penstock.tokenizer.load import load_tokenizer

LINES = [
    {"question": "The quick brown ", "answers": ["fox", "dog jumps", "lazy"], "right": 0},
    {"question": "2 + 2 =", "answers": [" 3", " 4", " 55"], "right": 1},
    {"question": "jumps over", "answers": [" the lazy dog", " me"], "right": 1},
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "easy.v1.jsonl"
    made.write_text("\n".join(json.dumps(line) for line in LINES) + "\n\n")
    return made


class Made:
    """A model of three tokens, the surer of the last one the larger what follows is."""

    def logits(self, window: Window) -> Iterator[NDArray[np.float32]]:
        yield np.array([[0, 1, 2]], np.float32) * (1 + np.array(window.targets)[:, None])


def test_the_likeliest_answer_counts_and_its_length(path: Path) -> None:
    """One answer may be the likeliest, and another by its length."""
    question = Question(question="q", answers=("ab", "a" * 40), right=1)
    task = Task("t", (question, question))
    windows = [[Window((0, 2, 1), 1), Window((0, 0), 1)], [Window((0, 2), 1), Window((0, 1, 1), 1)]]

    def logs(targets: list[int]) -> float:
        rows = np.array([[0, 1, 2]], np.float32) * (1 + np.array(targets, np.float32)[:, None])
        return -float(token_losses(rows, targets).sum())

    expected = [(logs([2, 1]), logs([0])), (logs([2]), logs([1, 1]))]
    likely = sum(second > first for first, second in expected)
    by_length = sum(second / 40 > first / 2 for first, second in expected)
    told: list[tuple[int, float]] = []
    found = score(Made(), task, windows, lambda done, share: told.append((done, share)))  # type: ignore[arg-type]
    assert found.questions == 2
    assert found.accuracy == likely / 2
    assert found.normalized == by_length / 2
    assert [done for done, _ in told] == [1, 2]
    assert told[-1][1] == found.accuracy
    assert likely != by_length


@needs_native
def test_scores_are_sums_over_the_tokens_of_answers(path: Path) -> None:
    folder = tiny_checkpoint("llama")
    tokenizer, task = load_tokenizer(folder), Task.read(path)
    assert task.name == "easy"
    windows = task.windows(tokenizer)
    for question, several in zip(task.questions, windows, strict=True):
        for answer, window in zip(question.answers, several, strict=True):
            whole = tokenizer.encode(question.question + answer, False, False)
            assert list(window.token_ids)[-len(whole) :] == list(whole)
            text = tokenizer.decode(list(window.targets))
            assert text.strip() == answer.strip()
    with TextModel.open(EngineConfig(model=str(folder), backend="reference"), 64) as model:
        found = score(model, task, windows)
        right = 0
        for question, several in zip(task.questions, windows, strict=True):
            sums = []
            for window in several:
                whole = Window(window.token_ids, 1)
                rows = np.concatenate([each.copy() for each in model.logits(whole)])
                losses = token_losses(rows, window.token_ids[1:])
                sums.append(-losses[window.first - 1 :].sum())
            right += int(np.argmax(sums)) == question.right
        assert found.accuracy == right / 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no questions"),
        ('{"question": "a", "answers": ["b", "c"], "right": 2}', "line 1: right is 2, and there"),
        ('\n{"question": "a", "answers": ["b"], "right": 0}', "line 2: Expected `array` of length"),
        ('{"question": "a", "answers": ["b", "c"], "gold": 0}', "unknown field `gold`"),
        ("no JSON", "line 1: JSON is malformed"),
        ('{"question": "a", "answers": ["b", ""], "right": 0}', "length >= 1"),
    ],
)
def test_files_that_are_no_tasks(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "task.jsonl"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        Task.read(path)
    assert message in str(caught.value)


@needs_native
def test_comparisons_have_tasks(
    capsys: pytest.CaptureFixture[str], path: Path, tmp_path: Path
) -> None:
    text, out = tmp_path / "text.txt", tmp_path / "out"
    text.write_text("The quick brown fox jumps over the lazy dog. " * 40)
    words = ["--text", text, "--max-windows", 1, "--tasks", path, "--compare", "rtn:4:32"]
    model = tiny_checkpoint("llama", intermediate_size=96)
    code, said, err = command(capsys, model, "--out", out, *words)
    assert code == 0, err
    assert "easy" in said.splitlines()[0]
    document = json.loads((out / "comparison.json").read_text())
    assert [each["tasks"]["easy"]["questions"] for each in document["variants"]] == [3, 3]
    assert str(path) in document["texts"]
    code, _, err = command(capsys, model, "--out", tmp_path / "other", *words[:4], *words[6:])
    assert code == 0, err
    code, _, err = command(capsys, model, "--out", tmp_path / "x", "--tasks", path)
    assert "--tasks: is of --compare alone" in err
    missing = [*words[:4], "--tasks", "arc_easy.jsonl", *words[6:]]
    code, _, err = command(capsys, model, "--out", tmp_path / "x", *missing)
    assert code != 0
    assert "--tasks arc_easy.jsonl: No such file or directory; a task is a file of questions" in err
    assert not (tmp_path / "x").exists()
