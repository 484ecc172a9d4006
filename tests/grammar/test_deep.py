"""Chains of references: what a worker accepts, an engine's threads can hold."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support import chains
from support.needs import needs_native

from penstock import LLM, RequestError, SamplingParams

pytestmark = needs_native
FACTORS = (0.7, 0.6, 0.5, 0.45, 0.4, 0.35, 0.3, 0.25, 0.2)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(backend="cpu", max_model_len=256, threads=1) as llm:
        yield llm


@pytest.mark.slow
@pytest.mark.parametrize("name", chains.specs())
def test_the_deepest_that_is_accepted_is_generated(llm: LLM, name: str) -> None:
    """It is compiled, its masks are computed, copied and dropped, in this process."""
    refused: list[str] = []
    for factor in FACTORS:
        spec = chains.specs(factor)[name]
        params = SamplingParams(grammar=spec, max_tokens=8, n=2)
        try:
            (output,) = llm.generate("a", params)
        except RequestError as error:
            refused.append(str(error))
            continue
        assert output.error is None
        assert refused
        assert all("nested too deep" in each for each in refused)
        return
    pytest.fail("none was accepted")


def test_one_too_deep_leaves_the_interpreter_alone(llm: LLM) -> None:
    for name in ("items", "rules"):
        params = SamplingParams(grammar=chains.specs()[name], max_tokens=8)
        with pytest.raises(RequestError, match="nested too deep"):
            llm.generate("a", params)
    assert llm.generate("a", SamplingParams(max_tokens=2))[0].error is None
