"""A model whose tokenizer is missing is refused before its weights are read."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from penstock import LLM
from penstock.cli.main import main
from penstock.config import EngineConfig
from penstock.demo_model import demo_model_path
from penstock.errors import TokenizerError, WeightError
from penstock.frontend.async_llm import AsyncLLM

MISSING = "has no tokenizer.json; download the checkpoint again with its tokenizer"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint that has neither a tokenizer nor weights that could be read."""
    shutil.copy(demo_model_path() / "config.json", tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"damaged")
    return tmp_path


@pytest.mark.parametrize(
    "words",
    [
        ["generate", "-p", "a"],
        ["bench", "spec", "-p", "a"],
        ["eval", "perplexity", "--text", __file__],
    ],
    ids=lambda words: words[0],
)
def test_commands(words: list[str], folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words, str(folder)]) == 1
    assert MISSING in capsys.readouterr().err


def test_a_server(folder: Path) -> None:
    """The front end may find it before the engine has found the damage, or after."""
    with pytest.raises((TokenizerError, WeightError)):
        asyncio.run(AsyncLLM.start(EngineConfig(model=str(folder))))


def test_python_needs_it_for_texts_alone(folder: Path) -> None:
    with pytest.raises(WeightError):
        LLM(str(folder))
    with pytest.raises(TokenizerError, match=MISSING):
        LLM(str(folder), require_tokenizer=True)
