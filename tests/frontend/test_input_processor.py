"""Loading a tokenizer before the engine has named it."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest
from support import byte_tokenizer

from penstock.engine.ipc.wire import ModelFacts
from penstock.errors import TokenizerError
from penstock.frontend import input_processor
from penstock.frontend.input_processor import THREAD_PROMPT_CHARS, InputProcessor
from penstock.length_limits import LengthLimits
from penstock.sandbox.jobs import Job, Tokens
from penstock.tokenizer import Tokenizer


def facts(path: Path) -> ModelFacts:
    return ModelFacts(
        served_model_name="m",
        tokenizer_path=str(path),
        vocab_size=300,
        lengths=LengthLimits(100),
    )


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def served(expected: str, named: Path) -> tuple[Tokenizer, list[str]]:
    """The tokenizer that texts are processed with, and what was loaded."""
    loads: list[str] = []

    async def main() -> Tokenizer:
        inputs = InputProcessor()
        inputs.expect(expected)
        await asyncio.sleep(0)
        inputs.load(str(named))
        try:
            return await inputs.serve(facts(named))
        finally:
            await inputs.aclose()

    plain = input_processor._load

    def load(path: str, chat_template: str) -> Tokenizer:
        loads.append(path)
        return plain(path, chat_template)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(input_processor, "_load", load)
        return asyncio.run(main()), loads


def test_what_was_expected_is_loaded_once(tmp_path: Path) -> None:
    folder = byte_tokenizer.write(tmp_path)
    tokenizer, loads = served(f"{folder}/", folder)
    assert loads == [str(folder)]
    assert tokenizer.encode("a", False)


def test_what_the_engine_names_counts(tmp_path: Path) -> None:
    folder = byte_tokenizer.write(_made(tmp_path / "right"))
    wrong = shutil.copytree(folder, tmp_path / "wrong")
    (wrong / "tokenizer.json").write_text("{")
    tokenizer, loads = served(str(wrong), folder)
    assert loads == [str(wrong), str(folder)]
    assert tokenizer.encode("a", False)
    with pytest.raises(TokenizerError, match="corrupt"):
        served(str(wrong), wrong)


@pytest.mark.parametrize("expected", ["", "org/model", "no-such-folder"])
def test_nothing_is_expected_of_what_is_no_tokenizer(expected: str, tmp_path: Path) -> None:
    folder = byte_tokenizer.write(tmp_path)
    assert served(expected, folder)[1] == [str(folder)]


def test_long_texts_are_called_by_their_fields(tmp_path: Path) -> None:
    """What a worker cannot tokenize is told by the field of the longest text."""
    folder = byte_tokenizer.write(tmp_path)

    async def job() -> Job:
        inputs = InputProcessor()
        await inputs.serve(facts(folder))
        asked: list[Job] = []

        async def run(job: Job, tenant: str) -> Tokens:
            asked.append(job)
            return Tokens.of([[], []])

        inputs.workers.run = run  # type: ignore[method-assign,assignment]
        texts = ["a", "a" * THREAD_PROMPT_CHARS]
        await inputs.encode(texts, params=["suffix", "prediction.content"], any_length=True)
        await inputs.aclose()
        return asked[0]

    died = asyncio.run(job()).died("memory")
    assert died.param == "prediction.content"
    assert "characters of prediction.content takes too much memory" in str(died)
