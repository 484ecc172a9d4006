"""Beam search: the beams of transformers, and the same bits whatever else runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support.bitwise import bits
from support.checkpoints import EOS, load_oracle, tiny_checkpoint
from support.needs import require_native

from penstock import LLM, BeamSearch, BeamSearchParams, RequestError, RequestOutput, SamplingParams
from penstock.backends.cpu.executor import CpuExecutor
from penstock.engine.beams import check_search
from penstock.interface.executor import Capabilities
from penstock.weights.model_folder import load_model_spec

PROMPTS = [[3, 77, 150, 9, 12], [200, 5, 5, 31] * 12, [8]]


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    require_native()
    with LLM(str(tiny_checkpoint()), backend="cpu", threads=1, dtype="float32") as llm:
        yield llm


def search(
    llm: LLM, prompts: list[list[int]], each: SamplingParams | list[SamplingParams]
) -> list[RequestOutput]:
    return llm.generate([{"prompt_token_ids": p} for p in prompts], each)


def params(width: int, tokens: int = 12, n: int | None = None, **options: Any) -> SamplingParams:
    """Options of a search; those of ``BeamSearch`` are named as transformers does."""
    named = ("length_penalty", "early_stopping")
    beams = BeamSearch(width=width, **{k: options.pop(k) for k in named if k in options})
    return SamplingParams(n=n or width, max_tokens=tokens, logprobs=0, beam_search=beams, **options)


@pytest.mark.parametrize(
    ("width", "options"),
    [
        (1, {}),
        (2, {}),
        (4, {"length_penalty": 0.0}),
        (5, {"length_penalty": 2.5, "early_stopping": True}),
        (3, {"early_stopping": True}),
        (3, {"length_penalty": -1.0}),
    ],
)
def test_beams_are_those_of_transformers(llm: LLM, width: int, options: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch", reason="transformers needs torch")
    model = load_oracle(tiny_checkpoint())
    # Many tokens end a text, or none would among so few.
    endings = [EOS, *range(0, 301, 6)]
    wanted = params(width, stop_token_ids=tuple(endings), ignore_eos=True, **options)
    outputs = search(llm, PROMPTS, wanted)
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        with torch.no_grad():
            made = model.generate(
                torch.tensor([prompt]),
                num_beams=width,
                num_return_sequences=width,
                max_new_tokens=12,
                do_sample=False,
                eos_token_id=endings,
                pad_token_id=-1,
                return_dict_in_generate=True,
                output_scores=True,
                **options,
            )
        for tokens, score, beam in zip(
            made.sequences.tolist(),
            [0.0] * width if width == 1 else made.sequences_scores.tolist(),
            output.outputs,
            strict=True,
        ):
            rest = [token for token in tokens[len(prompt) :] if token >= 0]
            assert rest == list(beam.token_ids)
            assert beam.finish_reason == ("stop" if rest[-1] in endings else "length")
            if width > 1:
                mean = beam.cumulative_logprob / len(rest) ** options.get("length_penalty", 1.0)
                assert mean == pytest.approx(score, abs=2e-4)


def test_one_beam_is_the_greedy_text(llm: LLM) -> None:
    greedy = SamplingParams(temperature=0, max_tokens=12, logprobs=0)
    assert [bits(o) for o in search(llm, PROMPTS, greedy)] == [
        bits(o) for o in search(llm, PROMPTS, params(1))
    ]


def test_the_best_of_more_beams_are_given(llm: LLM) -> None:
    (whole,) = search(llm, PROMPTS[:1], params(5))
    (some,) = search(llm, PROMPTS[:1], params(5, n=2))
    assert bits(some) == bits(whole)[:2]
    best = [o.cumulative_logprob for o in whole.outputs]
    assert best == sorted(best, reverse=True)  # all are equally long


@pytest.mark.parametrize("options", [
    {"max_num_seqs": 5},
    {"max_num_seqs": 5, "enable_prefix_caching": False},
    {"max_num_seqs": 16, "max_num_batched_tokens": 16},
    {"max_num_seqs": 16, "blocks": 20},
])  # fmt: skip
def test_beams_are_the_same_in_company(llm: LLM, options: dict[str, Any]) -> None:
    """Searches and draws together, in few places and blocks, so that beams wait for each other,
    are preempted and take places in different steps."""
    each = [params(5), params(3, 40), SamplingParams(seed=1, max_tokens=30, logprobs=0), params(4)]
    prompts = [*PROMPTS, PROMPTS[1]]
    alone = [bits(search(llm, [p], one)[0]) for p, one in zip(prompts, each, strict=True)]
    blocks = (options := dict(options)).pop("blocks", None)
    if blocks is not None:
        of_block = llm.config.kv_cache_bytes // llm.stats().kv_blocks_total
        options["kv_cache_bytes"] = blocks * of_block
    with LLM(str(tiny_checkpoint()), backend="cpu", threads=2, dtype="float32", **options) as other:
        together = [bits(o) for o in search(other, prompts, each)]
        stats = other.stats()
        other._core._core.check_integrity()
    assert together == alone
    assert stats.kv_blocks_used == 0


@pytest.mark.parametrize("family", ["lfm2", "gemma3", "qwen3_next"])
def test_windows_and_states_follow_their_beams(family: str) -> None:
    """A row of another beam's cache, or its state, would give another text."""
    require_native()
    with LLM(str(tiny_checkpoint(family)), backend="cpu", threads=1, dtype="float32") as llm:
        (beams,) = search(llm, PROMPTS[1:2], params(3, 30))
        for beam in beams.outputs:
            text = [*PROMPTS[1], *beam.token_ids]
            again = SamplingParams(max_tokens=1, prompt_logprobs=0)
            (scored,) = search(llm, [text[:-1]], again)
            assert scored.prompt_logprobs is not None
            told = (beam.logprobs or [])[:-1]
            for at, entry in enumerate(told):
                token = beam.token_ids[at]
                found = scored.prompt_logprobs[len(PROMPTS[1]) + at]
                assert found is not None
                assert found[token].logprob == pytest.approx(entry[token].logprob, abs=1e-3)


def test_it_is_called_as_vllm_does(llm: LLM) -> None:
    asked = BeamSearchParams(beam_width=3, max_tokens=12)
    (output,) = llm.beam_search({"prompt_token_ids": PROMPTS[0]}, asked)
    assert bits(output) == bits(search(llm, PROMPTS[:1], params(3))[0])
    with pytest.raises(RequestError, match="beam_width must be from 1 to 32, not 0"):
        llm.beam_search("a", BeamSearchParams(beam_width=0, max_tokens=12))
    old = SamplingParams(
        use_beam_search=True, best_of=3, n=3, temperature=0, max_tokens=12, logprobs=0
    )
    assert bits(search(llm, PROMPTS[:1], old)[0]) == bits(output)


def test_a_sampler_that_reports_few_tokens_has_narrow_searches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    require_native()
    able = Capabilities(late_masks=True, most_logprobs=20)
    monkeypatch.setattr(CpuExecutor, "capabilities", able)
    with LLM(str(tiny_checkpoint()), backend="cpu", threads=1, max_num_seqs=12) as llm:
        assert search(llm, PROMPTS[:1], params(10, 2))[0].outputs
        with pytest.raises(RequestError, match="looks at the 22 likeliest tokens, and 20 can"):
            search(llm, PROMPTS[:1], params(11, 2))


@pytest.mark.parametrize(("options", "message"), [
    ({"temperature": 0.7}, "temperature has no effect"),
    ({"top_p": 0.5}, "top_p cannot go with a beam search"),
    ({"stop": "x"}, "stop cannot go"),
    ({"n": 4}, "n .4. is more than the beams"),
    ({"length_penalty": float("nan")}, "length_penalty must be a finite number"),
    ({"width": 0, "n": 1}, "beam_width must be from 1 to 32"),
    ({"width": 9}, "runs 9 sequences together, and 8 may run"),
    ({"stop_token_ids": tuple(range(60)), "width": 5}, "looks at 310 tokens"),
])  # fmt: skip
def test_what_cannot_be_searched_for_is_refused(options: dict[str, Any], message: str) -> None:
    require_native()
    width = options.pop("width", 3)
    with (
        LLM(str(tiny_checkpoint()), backend="cpu", threads=1, max_num_seqs=8) as llm,
        pytest.raises(RequestError, match=message),
    ):
        search(llm, PROMPTS[:1], params(width, **options))


@pytest.mark.parametrize(
    ("width", "most", "follow", "message"),
    [
        (10, 20, False, None),
        (11, 20, False, "looks at the 22 likeliest tokens, and 20 can be had on this device"),
        (2, None, True, "start the engine without --speculative"),
    ],
)
def test_what_an_engine_cannot_search_for(
    width: int, most: int | None, follow: bool, message: str | None
) -> None:
    spec = load_model_spec(tiny_checkpoint())
    if message is None:
        check_search(params(width), spec, most, follow)
    else:
        with pytest.raises(RequestError, match=message):
            check_search(params(width), spec, most, follow)
