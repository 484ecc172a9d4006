"""An answer that cannot fit is refused with its limit, and never cut to what fits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from penstock import LLM, SamplingParams
from penstock.cli.main import main
from penstock.errors import RequestError

PROMPT = {"prompt_token_ids": [5] * 20}


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(threads=1, kv_cache_bytes=1 << 24, max_model_len=64) as llm:
        yield llm


@pytest.mark.parametrize("method", ["generate", "stream"])
@pytest.mark.parametrize("asked", [45, 64, 10**6, 2**63 - 1])
def test_more_than_fits_is_refused(llm: LLM, method: str, asked: int) -> None:
    call: Any = getattr(llm, method)
    with pytest.raises(RequestError, match=r"20 tokens and max_tokens asks .* at most 44,") as seen:
        list(call(PROMPT, SamplingParams(max_tokens=asked)))
    assert seen.value.param == "max_tokens"
    with pytest.raises(RequestError, match=r"lower min_tokens to at most 44 or"):
        list(call(PROMPT, SamplingParams(min_tokens=45)))
    assert llm.stats().running == 0


@pytest.mark.parametrize("asked", [44, None])
def test_all_that_fits_is_given(llm: LLM, asked: int | None) -> None:
    params = SamplingParams(temperature=0, max_tokens=asked, ignore_eos=True)
    (output,) = llm.generate(PROMPT, params)
    assert len(output.outputs[0].token_ids) == 44
    assert output.outputs[0].finish_reason == "length"


COMMAND = ["generate", "--threads", "1", "--max-model-len", "64", "--quiet", "--ignore-eos"]


@pytest.mark.parametrize("words", [[], ["--max-tokens", "none"]])
def test_the_command_fills_what_is_left(capsys: Any, words: list[str]) -> None:
    """It asks for 128 tokens of its own accord, which give way to the context."""
    assert main([*COMMAND, "-p", "def f(x):", "--json", *words]) == 0
    assert '"finish_reason":"length"' in capsys.readouterr().out


def test_the_command_refuses_what_does_not_fit(capsys: Any) -> None:
    assert main([*COMMAND, "-p", "def f(x):", "--max-tokens", "100"]) != 0
    assert "lower max_tokens to at most" in capsys.readouterr().err
