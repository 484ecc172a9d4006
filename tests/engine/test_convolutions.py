"""Models with convolutions along the sequence: the same bits, whatever else runs and however it is
cut."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import byte_tokenizer
from support.convolved import CONFIG
from support.grammars import EOS, PADDED
from support.late_masks import LIMITS, Late, made, mixed, played, same
from support.needs import require_native
from support.oracle import Oracle, Recorder

from penstock import LLM, RequestOutput, SamplingParams
from penstock.backends.reference.cache import RowStore
from penstock.cache.geometry import BLOCK_SIZE, KvDType
from penstock.config import EngineConfig
from penstock.engine.core import EngineCore
from penstock.engine.loader import load, plan_engine
from penstock.errors import ConfigError
from penstock.grammar import matcher
from penstock.interface.messages import EngineRequest
from penstock.plan.explain import explain
from penstock.speculate.speculation import Speculation
from penstock.speculative_config import Ngram

VOCABULARY = CONFIG["vocab_size"]


@dataclass(frozen=True)
class Model:
    folder: Path
    kv_dtype: KvDType
    backend: str = "cpu"


MODELS: list[tuple[str, KvDType, str]] = [
    ("float32", "float32", "cpu"),
    ("bfloat16", "bfloat16", "cpu"),
    ("float16", "float16", "cpu"),
    ("bfloat16", "int8", "cpu"),
    ("bfloat16", "bfloat16", "reference"),
]
"""Types of weights and cache, and the backend."""


def folder_of(folder: Path, **changes: Any) -> Path:
    (folder / "config.json").write_text(json.dumps(CONFIG | changes))
    return folder


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(
            model, id=" ".join(model), marks=pytest.mark.slow if model[2] == "reference" else ()
        )
        for model in MODELS
    ],
)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    dtype, kv_dtype, backend = request.param
    folder = folder_of(tmp_path_factory.mktemp("model"), torch_dtype=dtype)
    return Model(folder, kv_dtype, backend)


def start(model: Model, **options: Any) -> LLM:
    options = {"max_num_batched_tokens": 256, "max_model_len": 512} | options
    if model.backend == "cpu":
        require_native()
        options = {"threads": 1} | options
    return LLM(
        model=str(model.folder),
        load_format="dummy",
        backend=model.backend,
        kv_cache_dtype=model.kv_dtype,
        artifact=False,
        **options,
    )


@pytest.fixture(scope="module")
def plain(model: Model) -> Iterator[LLM]:
    with start(model, enable_prefix_caching=False) as llm:
        yield llm


def prompt(seed: int, length: int) -> list[int]:
    return [int(t) for t in np.random.default_rng(seed).integers(1, VOCABULARY, length)]


PROMPTS = [prompt(seed, length) for seed, length in enumerate((1, 2, 31, 32, 33, 34, 100, 290))]
PARAMS = [
    SamplingParams(temperature=0, max_tokens=14, ignore_eos=True, logprobs=3),
    SamplingParams(temperature=0.9, top_p=0.9, seed=7, max_tokens=14, ignore_eos=True, logprobs=3),
]


def run(llm: LLM, prompts: list[list[int]], params: list[SamplingParams]) -> list[RequestOutput]:
    return llm.generate([{"prompt_token_ids": p} for p in prompts], params)


def bits(output: RequestOutput) -> list[tuple[tuple[int, ...], Any]]:
    """Everything that a request reports, floats and all."""
    return [(tuple(c.token_ids), c.logprobs) for c in output.outputs]


def together(llm: LLM) -> list[Any]:
    pairs = [(p, s) for p in PROMPTS for s in PARAMS]
    return [bits(o) for o in run(llm, [p for p, _ in pairs], [s for _, s in pairs])]


@pytest.fixture(scope="module")
def expected(plain: LLM) -> list[Any]:
    """Each request alone."""
    return [bits(run(plain, [p], [s])[0]) for p in PROMPTS for s in PARAMS]


@pytest.mark.parametrize("budget", [1, 7, 32, 512])
def test_token_budget(model: Model, expected: list[Any], budget: int) -> None:
    with start(model, max_num_batched_tokens=budget, max_num_seqs=min(budget, 16)) as llm:
        assert together(llm) == expected


def test_prefix_hits(model: Model, expected: list[Any]) -> None:
    with start(model) as llm:
        assert together(llm) == expected
        before = llm.stats().prefix_hits
        assert together(llm) == expected
        assert llm.stats().prefix_hits - before >= sum(
            (len(p) - 1) // 32 * 32 for p in PROMPTS
        ) * len(PARAMS)


def test_preemption(model: Model, plain: LLM) -> None:
    prompts = [prompt(50 + i, 20 + i) for i in range(6)]
    params = [
        SamplingParams(temperature=i % 2, seed=i, max_tokens=80, ignore_eos=True, logprobs=2)
        for i in range(6)
    ]
    expected = [bits(run(plain, [p], [s])[0]) for p, s in zip(prompts, params, strict=True)]
    page = planned(model).plan.kv_groups.page_bytes
    with start(model, kv_cache_bytes=18 * page, max_model_len=200) as llm:
        assert [bits(o) for o in run(llm, prompts, params)] == expected
        assert llm.stats().preemptions > 0
        llm.check_integrity()


def test_forks(model: Model, plain: LLM) -> None:
    """Four samples of a prompt are its four continuations, each alone."""
    for length in (33, 64, 75):
        tokens = prompt(length, length)
        params = SamplingParams(
            temperature=1.0, seed=3, n=4, max_tokens=40, ignore_eos=True, logprobs=2
        )
        expected = bits(run(plain, [tokens], [params])[0])
        assert len({tokens for tokens, _ in expected}) == 4
        with start(model, max_num_seqs=3) as llm:  # one begins when another has ended
            beside = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
            several = run(llm, [prompt(1, 40), tokens], [beside, params])
            assert bits(several[1]) == expected
            llm.check_integrity()


@pytest.mark.parametrize("threads", [2, 3])
def test_threads(model: Model, expected: list[Any], threads: int) -> None:
    if model.backend == "reference":
        threads = 1  # it has no more
    with start(model, threads=threads) as llm:
        assert together(llm) == expected


@pytest.mark.parametrize("drafted", [4, 8, 16])
def test_drafts(model: Model, plain: LLM, drafted: int) -> None:
    """Rejected ones are taken back: more of them than a block of rows is left with by default."""
    every = list(range(1, VOCABULARY))  # so that whatever is drawn has been followed by something
    prompts = [every, every[::-1], every[::2] + every[1::2]]
    params = [
        SamplingParams(temperature=0, max_tokens=40, ignore_eos=True, logprobs=2),
        SamplingParams(temperature=0.7, seed=3, max_tokens=40, ignore_eos=True, logprobs=2),
        SamplingParams(temperature=0, max_tokens=40, ignore_eos=True, logprobs=2, n=1),
    ]
    expected = [bits(run(plain, [p], [s])[0]) for p, s in zip(prompts, params, strict=True)]
    drafting = f"ngram:num_tokens={drafted},min_match=1,adaptive=false"
    with start(model, speculative=drafting) as llm:
        assert [bits(o) for o in run(llm, prompts, params)] == expected
        drafts = llm.stats().drafts
        assert drafts is not None
        assert drafts.draft_tokens >= 20 * drafted


def test_a_model_that_drafts_has_convolutions(model: Model, plain: LLM) -> None:
    """Its own rows are taken back, too."""
    prompts = [prompt(70 + i, 20 + 13 * i) for i in range(3)]
    expected = [bits(run(plain, [p], [PARAMS[0]])[0]) for p in prompts]
    with start(model, speculative="self:num_tokens=5,quantization=int8,adaptive=false") as llm:
        assert [bits(o) for o in run(llm, prompts, [PARAMS[0]] * 3)] == expected
        drafts = llm.stats().drafts
        assert drafts is not None
        assert drafts.accepted_tokens > 0
        llm.check_integrity()


def planned(model: Model, **options: Any) -> Any:
    return plan_engine(
        EngineConfig(
            model=str(model.folder),
            load_format="dummy",
            backend=model.backend,
            kv_cache_dtype=model.kv_dtype,
            artifact=False,
            **options,
        )
    )


def test_rows_that_nobody_sees_may_hold_anything(model: Model) -> None:
    """What a sequence has given back, and what it has not written yet: here nothing but NaN."""
    if model.backend == "cpu":
        require_native()
    options = {"enable_prefix_caching": False, "threads": 1} | {"max_num_batched_tokens": 40}
    asked = EngineRequest(
        request_id="r",
        prompt_token_ids=prompt(1, 150),
        params=SamplingParams(temperature=0, max_tokens=60, ignore_eos=True, logprobs=0),
    )
    told = []
    for spoils in (True, False):
        engine_plan = planned(model, **options)
        core = EngineCore(engine_plan, load(engine_plan))
        core.add_request(asked)
        pool, seen = core._scheduler.cache._pool, []
        while core.has_work:
            if spoils:
                counts = enumerate(pool.ref_counts)
                spoil(core._executor, [block for block, count in counts if count == 0])
            for update in core.step():
                seen += [each.logprob for each in update.logprobs or []]
        core.close()
        told.append(seen)
    assert told[0] == told[1]
    assert not np.isnan(told[0]).any()


def spoil(executor: Any, blocks: list[int]) -> None:
    if not hasattr(executor, "_cache"):
        for layer in range(CONFIG["num_hidden_layers"]):
            executor._native.kv_fill(layer, np.array(blocks, np.int32), 0xFF)
        return
    slots = (np.array(blocks)[:, None] * BLOCK_SIZE + np.arange(BLOCK_SIZE)).reshape(-1)
    for stores in executor._cache:
        for store in stores:
            store.data[blocks if isinstance(store, RowStore) else slots] = np.nan


def test_what_a_sequence_keeps(model: Model) -> None:
    """The rows of a block that may be read again are kept of each convolution, two blocks at
    most."""
    row = {"float32": 4}.get(model.kv_dtype, 2) * 80  # 72 columns, in whole registers
    plain, drafting = planned(model), planned(model, speculative=Ngram(num_tokens=16))
    for engine_plan, rows in ((plain, 8), (drafting, 20)):
        layers = engine_plan.plan.kv_layers
        assert [layer.rows for layer in layers] == [rows, None, rows, rows]
        assert {layer.block_bytes(model.kv_dtype) for layer in layers if layer.rows} == {rows * row}
        assert f"a window of 3 that keep {rows} rows of a block" in explain(engine_plan.plan)
        assert engine_plan.plan.kv_groups.windows[0] is None
        assert set(engine_plan.plan.kv_groups.windows[1:]) == {3}


def test_late_masks_and_rejected_drafts_are_taken_back_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_native()
    monkeypatch.setattr(matcher, "SLOW_SECONDS", 1e9)  # every one is awaited while its step runs
    byte_tokenizer.write(tmp_path)
    folder = folder_of(tmp_path, vocab_size=PADDED, eos_token_id=EOS)
    speculative = Ngram(num_tokens=6)
    engine_plan = planned(Model(folder, "float32"), speculative=speculative, threads=1)
    assert engine_plan.plan.kv_layers[0].rows == 12  # 2 before 7 that may be taken back
    recorder, drafting = Recorder(), Speculation
    plain = made(engine_plan, Late(1, 0.0), load(engine_plan), drafting(recorder, 6), **LIMITS)
    timely, late = played(plain, mixed(1)), Late(1, 0.5)
    oracle = Oracle(recorder.texts(), PADDED, 0.6, 1, branching=False)
    core = made(engine_plan, late, load(engine_plan), drafting(oracle, 6), **LIMITS)
    same(played(core, mixed(1)), timely)
    assert late.late > 10


def test_what_cannot_run_is_refused(tmp_path: Path) -> None:
    model = Model(folder_of(tmp_path), "bfloat16", "reference")
    from penstock.backends.registry import backend

    with pytest.raises(ConfigError, match=r"convolutions \(ShortConv\)"):
        backend("cuda").check_runnable(planned(model).plan)
    with pytest.raises(ConfigError, match="choose a speculative method that drafts chains"):
        backend("cpu").check_runnable(planned(model).plan, trees=True)
