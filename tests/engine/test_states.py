"""Models whose layers keep states: the same bits alone, together, in chunks, forked, preempted."""

from __future__ import annotations

import itertools
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
from penstock.engine.constraints import Constraints
from penstock.engine.loader import plan_engine
from penstock.errors import ConfigError
from penstock.grammar.spec import GrammarSpec
from penstock.hardware import detect
from penstock.interface.mask import StepMasks
from penstock.resolve import resolve
from penstock.scheduler.sequence import SequenceState
from penstock.speculative_config import DraftModel, Medusa, Ngram, QuantizedSelf
from penstock.weights.model_folder import load_model_spec

pytest.importorskip("torch", reason="checkpoints are made with it")
pytest.importorskip("transformers", reason="checkpoints are made with it")

FAMILIES = ["qwen3_next", "qwen3_5_text", "granitemoehybrid", "nemotron_h", "mamba2", "falcon_h1"]
PROMPTS = [
    np.random.default_rng(seed).integers(0, 256, length).tolist()
    for seed, length in enumerate((1, 3, 31, 33, 60, 64))
]
PARAMS = SamplingParams(temperature=0.8, seed=3, max_tokens=12, ignore_eos=True, logprobs=2)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(
            (family, backend),
            id=f"{family} {backend}",
            marks=pytest.mark.slow if backend == "reference" and family != "mamba2" else (),
        )
        for family in FAMILIES
        for backend in ("reference", "cpu")
        if BACKENDS[backend].runs_states
    ],
)
def served(request: pytest.FixtureRequest) -> tuple[Path, str]:
    family, backend = request.param
    if backend == "cpu":
        require_native()
    return tiny_checkpoint(family), backend


def start(served: tuple[Path, str], **options: Any) -> LLM:
    folder, backend = served
    usual = {"kv_cache_bytes": 1 << 22, "max_num_seqs": 8, "threads": 1, "dtype": "float32"}
    return LLM(str(folder), backend=backend, artifact=False, **(usual | options))  # type: ignore


def bits(llm: LLM, prompts: list[list[int]], params: SamplingParams = PARAMS) -> list[Any]:
    outputs = llm.generate([{"prompt_token_ids": p} for p in prompts], params)
    return [[(tuple(c.token_ids), c.logprobs) for c in o.outputs] for o in outputs]


@pytest.fixture(scope="module")
def alone(served: tuple[Path, str]) -> Iterator[list[Any]]:
    with start(served) as llm:
        yield [bits(llm, [p])[0] for p in PROMPTS]
        assert llm.stats().states_total == 8 * 5
        assert llm.stats().states_used == 0


def test_together(served: tuple[Path, str], alone: list[Any]) -> None:
    with start(served) as llm:
        assert bits(llm, PROMPTS) == alone
        assert bits(llm, PROMPTS[::-1]) == alone[::-1]


@pytest.mark.thinned(3)
@pytest.mark.parametrize("budget", [8, 23])
def test_in_chunks(served: tuple[Path, str], alone: list[Any], budget: int) -> None:
    with start(served, max_num_batched_tokens=budget, max_num_seqs=4) as llm:
        assert bits(llm, PROMPTS) == alone


def test_with_other_threads(served: tuple[Path, str], alone: list[Any]) -> None:
    for threads in (2, 3):
        with start(served, threads=threads) as llm:
            assert bits(llm, PROMPTS) == alone


@pytest.mark.thinned(3)
@pytest.mark.parametrize(
    "types",
    [
        {"dtype": "bfloat16"},
        {"dtype": "float16", "kv_cache_dtype": "int8"},
        {"dtype": "bfloat16", "quantization": "int8"},
        {"dtype": "float32", "quantization": "int4", "kv_cache_dtype": "bfloat16"},
    ],
    ids=lambda types: " ".join(types.values()),
)
def test_in_other_types(served: tuple[Path, str], types: dict[str, str]) -> None:
    """What convolutions read is rounded as it is kept, wherever a prompt is cut."""
    with start(served, **types) as llm:
        expected = [bits(llm, [p])[0] for p in PROMPTS[3:]]
    with start(served, **types, max_num_batched_tokens=23, max_num_seqs=4, threads=2) as llm:
        assert bits(llm, PROMPTS[3:]) == expected
        assert bits(llm, PROMPTS[3:]) == expected


def test_forks_go_on_as_if_they_had_read_the_prompt(served: tuple[Path, str]) -> None:
    """Each of several sequences of a request, where all find a place at once and where not."""
    several = SamplingParams(temperature=1.0, seed=5, n=4, max_tokens=9, ignore_eos=True)
    with start(served) as llm:
        expected = [bits(llm, [p], several)[0] for p in PROMPTS[2:4]]
        assert len({tokens for tokens, _ in expected[0]}) > 1
        assert bits(llm, PROMPTS[2:4], several) == expected
    with start(served, max_num_seqs=2, max_num_batched_tokens=16) as llm:
        assert bits(llm, PROMPTS[2:4], several) == expected


@pytest.mark.thinned(3)
def test_prompts_are_found_with_their_states(served: tuple[Path, str], alone: list[Any]) -> None:
    """Again, and as the beginning of others; where few states are kept, and where many."""
    few = {"max_num_seqs": 2, "kv_cache_bytes": 400_000}
    for options, found_at_least in (({}, 64), (few, 0)):
        with start(served, **options) as llm:
            assert bits(llm, PROMPTS) == alone
            before = llm.stats().prefix_hits
            assert bits(llm, PROMPTS) == alone
            assert llm.stats().prefix_hits - before >= found_at_least
            longer = [[*PROMPTS[-1], *PROMPTS[1]], [*PROMPTS[-1][:40], 7, 8]]
            found = bits(llm, longer)
        with start(served, enable_prefix_caching=False) as llm:
            assert bits(llm, longer) == found
            assert llm.stats().prefix_hits == 0


@pytest.mark.thinned(3)
def test_answers_are_found_with_their_states(served: tuple[Path, str]) -> None:
    """The next turn of a conversation begins with the answer that the last one got."""
    params = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
    with start(served) as llm:
        ((tokens, _),) = bits(llm, [PROMPTS[4]], params)[0]
        turn = [*PROMPTS[4], *tokens, 5, 6, 7]
        before = llm.stats().prefix_hits
        next_turn = bits(llm, [turn])
        assert llm.stats().prefix_hits - before == 96  # of 60 + 60 + 3, the last is not computed
    with start(served, enable_prefix_caching=False) as llm:
        assert bits(llm, [turn]) == next_turn


@pytest.mark.thinned(3)
@pytest.mark.parametrize("prefixes", [False, True])
def test_preempted_sequences_go_on(served: tuple[Path, str], prefixes: bool) -> None:
    """They go on from the last state that is kept, or begin anew."""
    prompts = [np.random.default_rng(50 + i).integers(0, 256, 80 + i).tolist() for i in range(5)]
    long = SamplingParams(temperature=0.8, seed=1, max_tokens=90, ignore_eos=True, logprobs=1)
    with start(served) as llm:
        expected = bits(llm, prompts, long)
    planned = plan_engine(
        EngineConfig(model=str(served[0]), backend=BACKENDS[served[1]].name, dtype="float32")
    )
    plan, sequences = planned.plan, 4 * planned.config.state_bytes
    # Blocks for less than 4 sequences of 6 blocks, and more states beside them.
    tight = max(sequences + 13 * plan.kv_groups.page_bytes, 2 * sequences)
    with start(
        served,
        max_num_seqs=4,
        kv_cache_bytes=tight + prefixes * sequences,
        enable_prefix_caching=prefixes,
    ) as llm:
        assert bits(llm, prompts, long) == expected
        if plan.kv_layers:  # else nothing runs out
            assert llm.stats().preemptions > 0
        assert llm.stats().states_used == 0


@pytest.mark.thinned(3)
def test_drafts_change_nothing(served: tuple[Path, str], alone: list[Any]) -> None:
    """What is rejected is taken back; and what is accepted stays."""
    grammar = GrammarSpec(kind="regex", text="(abcd){12}[xyz]{9}")
    repeats = SamplingParams(temperature=1, seed=4, max_tokens=60, logprobs=1, grammar=grammar)
    with start(served) as llm:
        expected = bits(llm, PROMPTS, repeats)
    with start(served, speculative=Ngram(num_tokens=4, min_match=1, adaptive=False)) as llm:
        assert bits(llm, PROMPTS) == alone
        assert bits(llm, PROMPTS, repeats) == expected
        assert bits(llm, PROMPTS, repeats) == expected  # with prefixes
        figures = llm.stats().drafts
    assert figures is not None
    assert 0 < figures.accepted_tokens < figures.draft_tokens


@pytest.mark.thinned(3)
def test_a_draft_model_of_attention_alone_changes_nothing(
    served: tuple[Path, str], alone: list[Any]
) -> None:
    draft = DraftModel(model=str(tiny_checkpoint("llama")), num_tokens=3, adaptive=False)
    with start(served, speculative=draft, max_model_len=256) as llm:
        assert bits(llm, PROMPTS) == alone
        assert bits(llm, PROMPTS) == alone
        figures = llm.stats().drafts
    assert figures is not None
    assert figures.drafts > 0


@pytest.mark.thinned(3)
@pytest.mark.parametrize("speculative", [None, Ngram(num_tokens=3, min_match=1)])
def test_grammars(served: tuple[Path, str], speculative: Ngram | None) -> None:
    """Masks may come behind the logits, and the last token is then computed again."""
    grammar = GrammarSpec(kind="regex", text="[ab]{40}")
    told = SamplingParams(temperature=1, seed=9, max_tokens=50, grammar=grammar)
    with start(served) as llm:
        expected = [bits(llm, [p], told)[0] for p in PROMPTS]
    with start(served, speculative=speculative) as llm:
        assert bits(llm, PROMPTS, told) == expected
    assert len({tokens for ((tokens, _),) in expected}) > 1


@pytest.mark.thinned(3)
def test_late_masks_change_nothing(
    served: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every other mask is late, so that every other last token is computed again."""
    grammar = GrammarSpec(kind="regex", text="[ab]{40}")
    told = SamplingParams(temperature=1, seed=9, max_tokens=50, grammar=grammar)
    with start(served) as llm:
        expected = bits(llm, PROMPTS, told)
    turns, late = itertools.count(), 0
    masks = Constraints.masks

    def some(self: Constraints, samples: list[SequenceState], patience: float) -> StepMasks:
        nonlocal late
        taken = masks(self, samples, 60.0)
        held = {
            i
            for i, each in enumerate(samples)
            if each.matcher is not None and each.num_output_tokens and next(turns) % 2
        }
        late += len(held)
        return StepMasks(taken.masks, taken.late | held)

    monkeypatch.setattr(Constraints, "masks", some)
    with start(served) as llm:
        assert bits(llm, PROMPTS, told) == expected
    assert late > 50


@pytest.mark.parametrize("method", [Medusa(), QuantizedSelf()])
def test_trees_and_draft_models_with_states_are_refused(method: Any) -> None:
    spec = load_model_spec(tiny_checkpoint("qwen3_5_text"))
    config = EngineConfig(backend="reference", speculative=method)
    draft = spec if isinstance(method, QuantizedSelf) else None
    reason = "the draft model cannot be Qwen3_5" if draft else "Qwen3_5ForCausalLM has layers"
    with pytest.raises(ConfigError, match=f"{reason}.* keep a state"):
        resolve(config, detect(), spec, Path("m"), Path("m"), draft)


def test_gpus_are_refused() -> None:
    plan = plan_engine(
        EngineConfig(model=str(tiny_checkpoint("qwen3_5_text")), backend="reference")
    ).plan
    told = str(BACKENDS["cuda"].obstacle(plan))
    assert "layers that keep a state of a sequence in place of its keys and values" in told
