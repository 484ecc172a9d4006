"""Grammars with the model that ships with the package, through ``LLM``."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.grammars import FINITE, choice, regex, schema
from support.needs import needs_native

from penstock import LLM, AsyncLLM, EngineConfig, GrammarSpec, RequestError, SamplingParams
from penstock.frontend.outputs import CompletionOutput

pytestmark = needs_native


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(backend="cpu", max_model_len=512, threads=1) as made:
        yield made
        made.check_integrity()


def one(llm: LLM, prompt: str, params: SamplingParams) -> CompletionOutput:
    return llm.generate(prompt, params)[0].outputs[0]


def test_a_batch_of_everything_gives_what_each_gives_alone(llm: LLM) -> None:
    params = []
    for language in FINITE:
        for temperature in (0.0, 1.2):
            params.append(
                SamplingParams(
                    grammar=language.spec, temperature=temperature, seed=7, max_tokens=200
                )
            )
    params += [SamplingParams(temperature=0, max_tokens=20), SamplingParams(seed=1, max_tokens=20)]
    prompts = [f"# {i}\nvalue = " for i in range(len(params))]
    together = [each.outputs[0] for each in llm.generate(prompts, params)]
    for i, output in enumerate(together[: 2 * len(FINITE)]):
        assert output.finish_reason == "stop"
        assert FINITE[i // 2].holds(output.text), output.text
    for prompt, each, output in zip(prompts, params, together, strict=True):
        alone = one(llm, prompt, each)
        assert (alone.token_ids, alone.text) == (output.token_ids, output.text)


NAMES = st.sampled_from(["id", "name", "values", "é"])


def schemas() -> st.SearchStrategy[dict[str, Any]]:
    leaves = st.sampled_from(
        [
            {"type": "boolean"},
            {"type": "null"},
            {"enum": ["red", "green", 3, None]},
            {"const": {"a": [1, "b"]}},
        ]
    )

    def containers(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
        objects = st.dictionaries(NAMES, inner, max_size=3).flatmap(
            lambda properties: st.sets(st.sampled_from(sorted(properties) or ["id"])).map(
                lambda required: {
                    "type": "object",
                    "properties": properties,
                    "required": sorted(required & set(properties)),
                    "additionalProperties": False,
                }
            )
        )
        return objects | st.lists(inner, min_size=1, max_size=2).map(lambda some: {"anyOf": some})

    return st.recursive(leaves, containers, max_leaves=6)


@given(value=schemas(), temperature=st.sampled_from([0.0, 1.5]))
@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_outputs_are_of_any_schema(llm: LLM, value: dict[str, Any], temperature: float) -> None:
    language = schema(value)
    params = SamplingParams(grammar=language.spec, temperature=temperature, seed=2, max_tokens=400)
    output = one(llm, "JSON: ", params)
    assert output.finish_reason == "stop"
    assert language.holds(output.text), output.text


def test_any_object(llm: LLM) -> None:
    params = SamplingParams(
        grammar=GrammarSpec(kind="json_object"), n=8, seed=5, max_tokens=100, top_p=0.9
    )
    (output,) = llm.generate("# {} is the empty object\nempty = ", params)
    ended = [each.text for each in output.outputs if each.finish_reason == "stop"]
    assert ended
    assert all(isinstance(json.loads(text), dict) for text in ended)


def test_all_sequences_of_a_prompt(llm: LLM) -> None:
    language = regex("[a-z]{1,6}")
    params = SamplingParams(grammar=language.spec, n=4, seed=3, temperature=2.0)
    (output,) = llm.generate("x = ", params)
    texts = [each.text for each in output.outputs]
    assert all(map(language.holds, texts))
    assert len(set(texts)) > 1


def test_a_stop_string_ends_it_earlier(llm: LLM) -> None:
    params = SamplingParams(grammar=choice("first, second").spec, stop=(", ",))
    output = one(llm, "x = ", params)
    assert (output.text, output.finish_reason, output.stop_reason) == ("first", "stop", ", ")


def test_a_bad_grammar_is_refused_before_any_prompt_is_started(llm: LLM) -> None:
    good = SamplingParams(grammar=choice("a").spec)
    bad = SamplingParams(grammar=GrammarSpec(kind="regex", text="a(b"))
    with pytest.raises(RequestError, match="unclosed group"):
        llm.generate(["x", "y"], [good, bad])
    with pytest.raises(RequestError, match="must be a GrammarSpec"):
        llm.generate("x", SamplingParams(grammar={"kind": "regex"}))  # type: ignore[arg-type]
    assert one(llm, "x", good).text == "a"


def test_through_an_engine_in_a_process_of_its_own() -> None:
    """Grammars cross the socket; one that cannot be compiled ends its request alone."""

    async def text_of(llm: AsyncLLM, grammar: GrammarSpec | None) -> tuple[str, str | None]:
        params = SamplingParams(grammar=grammar, seed=1, max_tokens=20)
        async for output in llm.generate("x = ", params):
            last = output
        return last.outputs[0].text, last.error

    async def main() -> None:
        llm = await AsyncLLM.start(EngineConfig(backend="cpu", max_model_len=256, threads=1))
        try:
            chosen, bad, free, coded = await asyncio.gather(
                text_of(llm, choice("left", "right").spec),
                text_of(llm, GrammarSpec(kind="regex", text="a(b")),
                text_of(llm, None),
                text_of(llm, regex("[a-z]{3}[0-9]{2}").spec),
                return_exceptions=True,
            )
            await llm.check_integrity()
        finally:
            await llm.aclose()
        assert chosen[0] in ("left", "right")
        assert isinstance(bad, RequestError)
        assert "the regular expression cannot be used: unclosed group" in str(bad)
        assert not isinstance(chosen, BaseException)
        assert not isinstance(free, BaseException)
        assert not isinstance(coded, BaseException)
        assert free[1] is None
        assert regex("[a-z]{3}[0-9]{2}").holds(coded[0])

    asyncio.run(main())
