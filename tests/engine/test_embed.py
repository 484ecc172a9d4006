"""Embeddings by the engine: the same bits in any company, and fair to those who generate."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.needs import require_native
from support.overlap_executor import Deferred

from penstock import LLM, EngineConfig, PoolingParams, RequestError, SamplingParams
from penstock.cache.geometry import layer_block_bytes
from penstock.engine.core import EngineCore
from penstock.engine.loader import load, plan_engine
from penstock.interface.executor import Executor
from penstock.interface.host_executor import HostExecutor
from penstock.interface.messages import EngineRequest, FinishReason, SequenceUpdate
from penstock.interface.sampler import Sampler
from penstock.interface.step import StepInput, StepResult

VOCABULARY, HIDDEN = 300, 72
LAST, MEAN, CLS = (PoolingParams(pooling=kind) for kind in ("last", "mean", "cls"))
KINDS = (LAST, MEAN, CLS, PoolingParams(pooling="mean", normalize=False, dimensions=20))


def prompt(seed: int, length: int) -> list[int]:
    return [int(t) for t in np.random.default_rng(seed).integers(1, VOCABULARY, length)]


PROMPTS = [prompt(seed, length) for seed, length in enumerate((1, 31, 32, 33, 64, 150))]


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "intermediate_size": 104,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 24,
        "hidden_act": "silu",
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "torch_dtype": request.param,
        "eos_token_id": 0,
    }
    (path / "config.json").write_text(json.dumps(config))
    return path


def options(folder: Path, **changes: Any) -> dict[str, Any]:
    plain = {"load_format": "dummy", "backend": "cpu", "threads": 1, "max_model_len": 200}
    return {"model": str(folder), **plain, **changes}


def start(folder: Path, **changes: Any) -> LLM:
    require_native()
    return LLM(**options(folder, **changes))


@pytest.fixture(scope="module")
def plain(folder: Path) -> Iterator[LLM]:
    with start(folder, enable_prefix_caching=False) as llm:
        yield llm


def embed(llm: LLM, prompts: list[list[int]], kind: PoolingParams) -> list[bytes]:
    outputs = llm.embed([{"prompt_token_ids": each} for each in prompts], kind)
    assert all(output.error is None for output in outputs)
    assert [output.prompt_token_ids for output in outputs] == prompts
    return [output.embedding.tobytes() for output in outputs]


@pytest.fixture(scope="module")
def expected(plain: LLM) -> list[list[bytes]]:
    """Embeddings of each kind and prompt, computed alone."""
    return [[embed(plain, [each], kind)[0] for each in PROMPTS] for kind in KINDS]


def together(llm: LLM) -> list[list[bytes]]:
    return [embed(llm, PROMPTS, kind) for kind in KINDS]


def test_they_differ_and_have_the_asked_length(expected: list[list[bytes]]) -> None:
    assert len({each for kind in expected[:2] for each in kind}) == 2 * len(PROMPTS) - 1
    assert expected[0][0] == expected[1][0], "of one token, the mean is the last"
    for kind, embeddings in zip(KINDS, expected, strict=True):
        for each in embeddings:
            vector = np.frombuffer(each, np.float32)
            assert vector.shape == (kind.dimensions or HIDDEN,)
            if kind.normalize:
                assert abs(np.linalg.norm(vector.astype(np.float64)) - 1) < 1e-6


def test_together(plain: LLM, expected: list[list[bytes]]) -> None:
    assert together(plain) == expected


@pytest.mark.parametrize("budget", [16, 50])
def test_chunked(folder: Path, expected: list[list[bytes]], budget: int) -> None:
    with start(folder, max_num_batched_tokens=budget, max_num_seqs=4) as llm:
        assert together(llm) == expected


def test_threads(folder: Path, expected: list[list[bytes]]) -> None:
    with start(folder, threads=2) as llm:
        assert together(llm) == expected


def test_cached_prefixes_serve_the_last_token_and_never_the_mean(
    folder: Path, expected: list[list[bytes]]
) -> None:
    with start(folder) as llm:
        assert embed(llm, PROMPTS, MEAN) == expected[1]
        outputs = llm.embed([{"prompt_token_ids": each} for each in PROMPTS], LAST)
        assert [o.embedding.tobytes() for o in outputs] == expected[0]
        assert [o.num_cached_tokens for o in outputs] == [(len(p) - 1) // 32 * 32 for p in PROMPTS]
        again = llm.embed([{"prompt_token_ids": each} for each in PROMPTS], MEAN)
        assert [o.embedding.tobytes() for o in again] == expected[1]
        assert not any(o.num_cached_tokens for o in again)
        # What an embedding left in the cache serves those who generate.
        (generated,) = llm.generate({"prompt_token_ids": PROMPTS[-1]})
        assert generated.num_cached_tokens == 128


def test_reference_agrees(folder: Path, expected: list[list[bytes]]) -> None:
    dtype = json.loads((folder / "config.json").read_text())["torch_dtype"]
    tolerance = {"float32": 1e-5, "bfloat16": 4e-2}[dtype]
    with start(folder, backend="reference") as llm:
        for kind, wanted in zip(KINDS, expected, strict=True):
            for got, want in zip(embed(llm, PROMPTS, kind), wanted, strict=True):
                a, b = np.frombuffer(got, np.float32), np.frombuffer(want, np.float32)
                np.testing.assert_allclose(a, b, rtol=0, atol=tolerance)


def test_among_those_who_generate_short_of_blocks(
    folder: Path, plain: LLM, expected: list[list[bytes]]
) -> None:
    """Bits of requests in flight together, preempted and resumed, are those of each alone."""
    params = SamplingParams(temperature=0, max_tokens=90, ignore_eos=True, logprobs=2)
    asked = [prompt(50 + i, 20 + i) for i in range(4)]
    alone = plain.generate([{"prompt_token_ids": each} for each in asked], params)
    dtype = plain.config.kv_cache_dtype
    block = 2 * layer_block_bytes(dtype, 2, 24)
    config = EngineConfig(
        **options(folder, kv_cache_bytes=9 * block, max_num_batched_tokens=40, max_num_seqs=8)
    )
    core = EngineCore.start(config)
    for i, each in enumerate(asked):
        core.add_request(generation(f"g{i}", each, params))
    updates: list[SequenceUpdate] = []
    waiting = [(k, p) for k in range(len(KINDS)) for p in range(len(PROMPTS))]
    while core.has_work or waiting:
        if waiting:
            k, p = waiting.pop(0)
            core.add_request(embedding(f"e{k}-{p}", PROMPTS[p], KINDS[k]))
        updates += core.step()
        core.check_integrity()
    assert core.stats().preemptions > 0
    core.close()
    for k, kinds in enumerate(expected):
        for p, want in enumerate(kinds):
            (only,) = [u for u in updates if u.request_id == f"e{k}-{p}"]
            assert only.finish_reason is FinishReason.STOP
            assert only.token_ids == []
            assert only.embedding == want, (k, p)
    for i, output in enumerate(alone):
        mine = [u for u in updates if u.request_id == f"g{i}"]
        assert [t for u in mine for t in u.token_ids] == output.outputs[0].token_ids
        assert not any(u.embedding for u in mine)


# --- on the reference backend ------------------------------------------------------------------


def generation(request_id: str, tokens: list[int], params: SamplingParams) -> EngineRequest:
    return EngineRequest(request_id=request_id, prompt_token_ids=tokens, params=params)


def embedding(
    request_id: str, tokens: list[int], kind: PoolingParams, priority: int = 0
) -> EngineRequest:
    return EngineRequest(
        request_id=request_id, prompt_token_ids=tokens, pooling=kind, priority=priority
    )


def finish(core: EngineCore) -> dict[str, SequenceUpdate]:
    """The last update of each request."""
    ended = {}
    while core.has_work:
        ended |= {update.request_id: update for update in core.step()}
        core.check_integrity()
    assert core.stats().kv_blocks_used == 0
    return ended


ONE_TYPE = pytest.mark.parametrize("folder", ["float32"], indirect=True)
"""Marks tests of what does not depend on the type of the weights."""


@pytest.fixture
def core(folder: Path) -> Iterator[EngineCore]:
    core = EngineCore.start(EngineConfig(**options(folder, backend="reference")))
    yield core
    core.close()


@ONE_TYPE
def test_steps_that_overlap_bring_the_same(folder: Path, core: EngineCore) -> None:
    config = EngineConfig(
        **options(folder, backend="reference", max_num_batched_tokens=40, max_num_seqs=8)
    )
    engine_plan = plan_engine(config)
    overlapped = EngineCore(engine_plan, Deferred(load(engine_plan, lambda phase: None)))
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    for each in (core, overlapped):
        each.add_request(generation("g", PROMPTS[3], params))
        for k, kind in enumerate(KINDS):
            for p, tokens in enumerate(PROMPTS):
                each.add_request(embedding(f"{k}-{p}", tokens, kind))
    expected, got = finish(core), finish(overlapped)
    assert set(got) == set(expected)
    for request_id, update in expected.items():
        if request_id == "g":
            continue
        a, b = (np.frombuffer(u.embedding or b"", np.float32) for u in (update, got[request_id]))
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-5)  # NumPy's products vary with the rows
    overlapped.close()


def test_an_aborted_one_ends_and_others_go_on(folder: Path) -> None:
    config = EngineConfig(
        **options(folder, backend="reference", max_num_batched_tokens=20, max_num_seqs=4)
    )
    core = EngineCore.start(config)
    core.add_request(embedding("a", PROMPTS[5], MEAN))
    core.add_request(embedding("b", PROMPTS[5], MEAN))
    core.step()
    (ended,) = core.abort(["a"])
    assert (ended.finish_reason, ended.embedding) == (FinishReason.ABORT, None)
    last = finish(core)
    assert set(last) == {"b"}
    assert last["b"].finish_reason is FinishReason.STOP
    core.close()


@ONE_TYPE
def test_priority_goes_first(core: EngineCore) -> None:
    core._scheduler.max_num_batched_tokens = 150
    order: list[str] = []
    for name, priority in (("late", 5), ("first", -5), ("middle", 0)):
        core.add_request(embedding(name, PROMPTS[5], LAST, priority))
    while core.has_work:
        order += [update.request_id for update in core.step()]
    assert order == ["first", "middle", "late"]


@ONE_TYPE
def test_a_prompt_may_fill_the_context_and_no_more(core: EngineCore) -> None:
    core.add_request(embedding("full", prompt(1, 200), LAST))
    assert finish(core)["full"].embedding is not None
    with pytest.raises(RequestError, match="201 tokens") as error:
        core.add_request(embedding("over", prompt(1, 201), LAST))
    assert error.value.param == "prompt"
    with pytest.raises(RequestError, match="empty"):
        core.add_request(embedding("none", [], LAST))
    with pytest.raises(RequestError, match="outside the vocabulary"):
        core.add_request(embedding("bad", [VOCABULARY], LAST))
    with pytest.raises(RequestError, match="embeddings have 72") as error:
        core.add_request(embedding("wide", [1], PoolingParams(dimensions=73)))
    assert error.value.param == "dimensions"


@ONE_TYPE
def test_one_that_fails_fails_alone(core: EngineCore) -> None:
    runner = core._runner
    runner._executor = Spoiled(runner._executor)
    core.add_request(embedding("good", PROMPTS[3], LAST))
    core.add_request(embedding("bad", PROMPTS[4], MEAN))
    ended = finish(core)
    assert ended["good"].embedding is not None
    assert ended["bad"].finish_reason is FinishReason.ERROR
    assert ended["bad"].embedding is None
    assert "NaN or infinite" in (ended["bad"].error or "")


class Spoiled(HostExecutor):
    """Hidden states of the step's last row are NaN."""

    def __init__(self, inner: Executor) -> None:
        self._inner = inner

    def run(self, step: StepInput) -> StepResult:
        result = self._inner.run(step)
        assert result.hidden is not None
        result.hidden[-1] = np.nan
        return result

    @property
    def sampler(self) -> Sampler[Any]:
        return self._inner.sampler

    def close(self) -> None:
        self._inner.close()
