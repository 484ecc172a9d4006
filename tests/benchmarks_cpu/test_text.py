"""A text that engines read for their perplexity."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from comparison.quality import score
from comparison.text import WINDOW, Text
from penstock import demo_model_path
from penstock.errors import ConfigError, TokenizerError
from penstock.evaluate.text_model import bos_before
from penstock.tokenizer.load import load_tokenizer

from .test_rounds import enter


def test_windows_are_those_of_llama_cpps_tool(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text("def add(a, b):\n    return a + b\n\n\n" * 400)
    text = Text.read(path, demo_model_path(), most=2)
    assert [len(window) for window in text.windows] == [WINDOW, WINDOW]
    assert text.first == WINDOW // 2 + 1
    bos = bos_before(load_tokenizer(demo_model_path()))
    assert all(bos is None or window[0] == bos for window in text.windows)
    counted = 2 * (WINDOW - text.first)
    assert text.perplexity(counted * math.log(7)) == pytest.approx(7)
    assert str(text) == "2 windows of 512 tokens of a.py"


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [(b"too short", ConfigError, "shorter|longer"), (b"\xff" * 9999, TokenizerError, "UTF-8")],
)
def test_texts_that_cannot_be_read(
    content: bytes, error: type[Exception], message: str, tmp_path: Path
) -> None:
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(error, match=message):
        Text.read(tmp_path / "a", demo_model_path(), most=2)


def test_what_an_engine_does_not_tell_is_written_down(fake_engine: Path, tmp_path: Path) -> None:
    entered = enter(fake_engine, tmp_path, "a", "tells nothing", "broken", served=True)
    text = Text("t", [[1, 2, 3, 4]], 2)
    score(entered.contenders, text, entered.comparison)
    (found,) = entered.comparison.qualities
    assert (found.engine, found.perplexity) == ("a", pytest.approx(math.exp(0.5)))
    reasons = {absence.engine: absence.reason for absence in entered.comparison.absences}
    assert reasons.keys() == {"tells nothing", "broken"}
    assert "no log-probabilities" in reasons["tells nothing"]
    assert all(contender.worker is None for contender in entered.contenders)
