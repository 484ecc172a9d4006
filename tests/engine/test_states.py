"""Models whose layers keep states: the same bits alone, together, in chunks, forked, preempted."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.checkpoints import tiny_checkpoint
from support.needs import require_native

from penstock import LLM, SamplingParams
from penstock.backends.registry import BACKENDS
from penstock.config import EngineConfig
from penstock.engine.loader import plan_engine
from penstock.errors import ConfigError
from penstock.grammar.spec import GrammarSpec
from penstock.speculative_config import DraftModel, Ngram, QuantizedSelf

pytest.importorskip("torch", reason="checkpoints are made with it")
pytest.importorskip("transformers", reason="checkpoints are made with it")

FAMILIES = ["qwen3_next", "qwen3_5_text", "granitemoehybrid", "nemotron_h", "mamba2"]
PROMPTS = [
    np.random.default_rng(seed).integers(0, 256, length).tolist()
    for seed, length in enumerate((1, 3, 31, 33, 60, 64))
]
PARAMS = SamplingParams(temperature=0.8, seed=3, max_tokens=12, ignore_eos=True, logprobs=2)


@pytest.fixture(
    scope="module",
    params=[
        (family, backend)
        for family in FAMILIES
        for backend in ("reference", "cpu")
        if BACKENDS[backend].runs_states
    ],
    ids=" ".join,
)
def served(request: pytest.FixtureRequest) -> tuple[Path, str]:
    family, backend = request.param
    if backend == "cpu":
        require_native()
    return tiny_checkpoint(family), backend


def start(served: tuple[Path, str], **options: Any) -> LLM:
    folder, backend = served
    options = {"kv_cache_bytes": 1 << 22, "max_num_seqs": 8, "threads": 1} | options
    return LLM(str(folder), backend=backend, dtype="float32", artifact=False, **options)


def bits(llm: LLM, prompts: list[list[int]], params: SamplingParams = PARAMS) -> list[Any]:
    outputs = llm.generate([{"prompt_token_ids": p} for p in prompts], params)
    return [[(tuple(c.token_ids), c.logprobs) for c in o.outputs] for o in outputs]


@pytest.fixture(scope="module")
def alone(served: tuple[Path, str]) -> Iterator[list[Any]]:
    with start(served) as llm:
        yield [bits(llm, [p])[0] for p in PROMPTS]
        assert llm.stats().states_total == 8
        assert llm.stats().states_used == 0


def test_together(served: tuple[Path, str], alone: list[Any]) -> None:
    with start(served) as llm:
        assert bits(llm, PROMPTS) == alone
        assert bits(llm, PROMPTS[::-1]) == alone[::-1]


@pytest.mark.parametrize("budget", [8, 23])
def test_in_chunks(served: tuple[Path, str], alone: list[Any], budget: int) -> None:
    with start(served, max_num_batched_tokens=budget, max_num_seqs=4) as llm:
        assert bits(llm, PROMPTS) == alone


def test_with_other_threads(served: tuple[Path, str], alone: list[Any]) -> None:
    if served[1] == "reference":
        pytest.skip("it computes on one thread")
    for threads in (2, 3):
        with start(served, threads=threads) as llm:
            assert bits(llm, PROMPTS) == alone


def test_forks_go_on_as_if_they_had_read_the_prompt(served: tuple[Path, str]) -> None:
    """Each of several sequences of a request, where all find a place at once and where not."""
    several = SamplingParams(temperature=1.0, seed=5, n=4, max_tokens=9, ignore_eos=True)
    with start(served) as llm:
        expected = [bits(llm, [p], several)[0] for p in PROMPTS[2:4]]
        assert len({tokens for tokens, _ in expected[0]}) > 1
        assert bits(llm, PROMPTS[2:4], several) == expected
    with start(served, max_num_seqs=2, max_num_batched_tokens=16) as llm:
        assert bits(llm, PROMPTS[2:4], several) == expected


def test_a_preempted_sequence_begins_anew(served: tuple[Path, str]) -> None:
    prompts = [np.random.default_rng(50 + i).integers(0, 256, 50 + i).tolist() for i in range(6)]
    long = SamplingParams(temperature=0.8, seed=1, max_tokens=60, ignore_eos=True, logprobs=1)
    with start(served) as llm:
        expected = bits(llm, prompts, long)
    config = plan_engine(EngineConfig(model=str(served[0]), backend="reference", dtype="float32"))
    each = config.plan.state_bytes(log=0)
    tight = 4 * each + 13 * config.plan.kv_groups.page_bytes  # of 4 sequences of 4 blocks
    with start(served, max_num_seqs=4, kv_cache_bytes=max(tight, 8 * each)) as llm:
        assert bits(llm, prompts, long) == expected
        assert llm.stats().preemptions > 0
        assert llm.stats().states_used == 0


def test_grammars_wait_for_their_masks(served: tuple[Path, str]) -> None:
    """A token of a state cannot be taken back, so a late mask holds up its sequence alone."""
    told = SamplingParams(
        temperature=0, max_tokens=20, grammar=GrammarSpec(kind="regex", text="[ab]{8}")
    )
    with start(served) as llm:
        outputs = llm.generate([{"prompt_token_ids": p} for p in PROMPTS], told)
        again = llm.generate([{"prompt_token_ids": p} for p in PROMPTS[:2]], told)
    for output in outputs:
        assert len(output.outputs[0].text) == 8
        assert set(output.outputs[0].text) <= {"a", "b"}
    assert [o.outputs[0].text for o in again] == [o.outputs[0].text for o in outputs[:2]]


@pytest.mark.parametrize("method", [Ngram(), QuantizedSelf(), "draft"])
def test_drafts_are_refused_with_the_reason(method: Any) -> None:
    model = str(tiny_checkpoint("qwen3_5_text"))
    if method == "draft":
        method, named = DraftModel(model=model), "the model"
    else:
        named = "the model, Qwen3_5ForCausalLM,"
    with pytest.raises(ConfigError, match=f"layers of {named}.* leave speculative out"):
        plan_engine(EngineConfig(model=model, backend="reference", speculative=method))


def test_a_draft_model_with_states_is_refused() -> None:
    target, draft = (str(tiny_checkpoint(family)) for family in ("llama", "qwen3_5_text"))
    with pytest.raises(ConfigError, match="layers of the draft model, Qwen3_5ForCausalLM"):
        plan_engine(
            EngineConfig(model=target, backend="reference", speculative=DraftModel(model=draft))
        )


def test_prefixes_are_not_cached_and_explain_says_why() -> None:
    config = plan_engine(
        EngineConfig(model=str(tiny_checkpoint("qwen3_5_text")), backend="reference")
    ).config
    assert not config.enable_prefix_caching
    told = re.search("enable_prefix_caching +False  .states of layers are not", config.explain())
    assert told is not None
