"""Models with convolutions along the sequence: the same bits, whatever else runs and however it is
cut."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support import byte_tokenizer
from support.bitwise import Bits, Requests, Served, growing, prompt, run, served
from support.convolved import CONFIG
from support.grammars import EOS, PADDED
from support.late_masks import LIMITS, Late, made, mixed, played, same
from support.needs import require_native
from support.oracle import Oracle, Recorder
from support.spoiled import spoil

from penstock import LLM, SamplingParams
from penstock.cache.geometry import KvDType
from penstock.engine.core import EngineCore
from penstock.engine.loader import load
from penstock.errors import ConfigError
from penstock.grammar import matcher
from penstock.interface.messages import EngineRequest
from penstock.plan.explain import explain
from penstock.speculate.speculation import Speculation
from penstock.speculative_config import Ngram

VOCABULARY = CONFIG["vocab_size"]
MODELS: list[tuple[str, KvDType, str]] = [
    ("float32", "float32", "cpu"),
    ("bfloat16", "bfloat16", "cpu"),
    ("float16", "float16", "cpu"),
    ("bfloat16", "int8", "cpu"),
    ("bfloat16", "bfloat16", "reference"),
]
"""Types of weights and cache, and the backend."""


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(
            model, id=" ".join(model), marks=pytest.mark.slow if model[2] == "reference" else ()
        )
        for model in MODELS
    ],
)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Served:
    dtype, kv_dtype, backend = request.param
    options = {"backend": backend, "kv_cache_dtype": kv_dtype, "artifact": False}
    bounds = {"max_num_batched_tokens": 256, "max_model_len": 512}
    config = CONFIG | {"torch_dtype": dtype}
    return served(tmp_path_factory.mktemp("model"), config, **options, **bounds)


PARAMS = [
    SamplingParams(temperature=0, max_tokens=14, ignore_eos=True, logprobs=3),
    SamplingParams(temperature=0.9, top_p=0.9, seed=7, max_tokens=14, ignore_eos=True, logprobs=3),
]
REQUESTS = Requests.product(
    [prompt(i, length, VOCABULARY) for i, length in enumerate((1, 2, 31, 32, 33, 34, 100, 290))],
    *PARAMS,
)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("budget", [1, 7, 32, 512])
def test_token_budget(model: Served, expected: list[Bits], budget: int) -> None:
    with model.start(max_num_batched_tokens=budget, max_num_seqs=min(budget, 16)) as llm:
        assert REQUESTS.together(llm) == expected


def test_prefix_hits(model: Served, expected: list[Bits]) -> None:
    with model.start() as llm:
        assert REQUESTS.together(llm) == expected
        before = llm.stats().prefix_hits
        assert REQUESTS.together(llm) == expected
        assert llm.stats().prefix_hits - before >= REQUESTS.cached_tokens


def test_preemption(model: Served, plain: LLM) -> None:
    requests = growing(6, max_tokens=80)
    page = model.kv_groups().page_bytes
    with model.start(kv_cache_bytes=18 * page, max_model_len=200) as llm:
        assert requests.together(llm) == requests.alone(plain)
        assert llm.stats().preemptions > 0
        llm.check_integrity()


def test_forks(model: Served, plain: LLM) -> None:
    """Four samples of a prompt are its four continuations, each alone."""
    for length in (33, 64, 75):
        tokens = prompt(length, length)
        params = SamplingParams(
            temperature=1.0, seed=3, n=4, max_tokens=40, ignore_eos=True, logprobs=2
        )
        (expected,) = run(plain, [tokens], params)
        assert len({tokens for tokens, _ in expected}) == 4
        with model.start(max_num_seqs=3) as llm:  # one begins when another has ended
            beside = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
            several = run(llm, [prompt(1, 40), tokens], [beside, params])
            assert several[1] == expected
            llm.check_integrity()


@pytest.mark.thinned(3)
@pytest.mark.parametrize("threads", [2, 3])
def test_threads(model: Served, expected: list[Bits], threads: int) -> None:
    with model.start(threads=threads) as llm:
        assert REQUESTS.together(llm) == expected


@pytest.mark.thinned(4)
@pytest.mark.parametrize("drafted", [4, 8, 16])
def test_drafts(model: Served, plain: LLM, drafted: int) -> None:
    """Rejected ones are taken back: more of them than a block of rows is left with by default."""
    every = list(range(1, VOCABULARY))  # so that whatever is drawn has been followed by something
    greedy = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True, logprobs=2)
    drawn = SamplingParams(temperature=0.7, seed=3, max_tokens=40, ignore_eos=True, logprobs=2)
    requests = Requests(
        (every, every[::-1], every[::2] + every[1::2]),
        (greedy, drawn, greedy),
    )
    drafting = f"ngram:num_tokens={drafted},min_match=1,adaptive=false"
    with model.start(speculative=drafting) as llm:
        assert requests.together(llm) == requests.alone(plain)
        drafts = llm.stats().drafts
        assert drafts is not None
        assert drafts.draft_tokens >= 20 * drafted


def test_a_model_that_drafts_has_convolutions(model: Served, plain: LLM) -> None:
    """Its own rows are taken back, too."""
    prompts = [prompt(70 + i, 20 + 13 * i) for i in range(3)]
    requests = Requests.product(prompts, PARAMS[0])
    with model.start(speculative="self:num_tokens=5,quantization=int8,adaptive=false") as llm:
        assert requests.together(llm) == requests.alone(plain)
        drafts = llm.stats().drafts
        assert drafts is not None
        assert drafts.accepted_tokens > 0
        llm.check_integrity()


def test_rows_that_nobody_sees_may_hold_anything(model: Served) -> None:
    """What a sequence has given back, and what it has not written yet: here nothing but NaN."""
    if model.options["backend"] == "cpu":
        require_native()
    options = {"enable_prefix_caching": False, "threads": 1} | {"max_num_batched_tokens": 40}
    asked = EngineRequest(
        request_id="r",
        prompt_token_ids=prompt(1, 150),
        params=SamplingParams(temperature=0, max_tokens=60, ignore_eos=True, logprobs=0),
    )
    told = []
    for spoils in (True, False):
        engine_plan = model.planned(**options)
        core = EngineCore(engine_plan, load(engine_plan))
        core.add_request(asked)
        pool, seen = core._scheduler.cache._pool, []
        while core.has_work:
            if spoils:
                counts = enumerate(pool.ref_counts)
                free = [block for block, count in counts if count == 0]
                spoil(core._executor, free, CONFIG["num_hidden_layers"])
            for update in core.step():
                seen += [each.logprob for each in update.logprobs or []]
        core.close()
        told.append(seen)
    assert told[0] == told[1]
    assert not np.isnan(told[0]).any()


def test_what_a_sequence_keeps(model: Served) -> None:
    """The rows of a block that may be read again are kept of each convolution, two blocks at
    most."""
    kv_dtype = model.options["kv_cache_dtype"]
    row = {"float32": 4}.get(kv_dtype, 2) * 80  # 72 columns, in whole registers
    plain, drafting = model.planned(), model.planned(speculative=Ngram(num_tokens=16))
    for engine_plan, rows in ((plain, 8), (drafting, 20)):
        layers = engine_plan.plan.kv_layers
        assert [layer.rows for layer in layers] == [rows, None, rows, rows]
        assert {layer.block_bytes(kv_dtype) for layer in layers if layer.rows} == {rows * row}
        assert f"a window of 3 that keep {rows} rows of a block" in explain(engine_plan.plan)
        assert engine_plan.plan.kv_groups.windows[0] is None
        assert set(engine_plan.plan.kv_groups.windows[1:]) == {3}


def test_late_masks_and_rejected_drafts_are_taken_back_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_native()
    monkeypatch.setattr(matcher, "SLOW_SECONDS", 1e9)  # every one is awaited while its step runs
    byte_tokenizer.write(tmp_path)
    model = served(tmp_path, CONFIG | {"vocab_size": PADDED, "eos_token_id": EOS}, artifact=False)
    speculative = Ngram(num_tokens=6)
    engine_plan = model.planned(speculative=speculative, kv_cache_dtype="float32", threads=1)
    assert engine_plan.plan.kv_layers[0].rows == 12  # 2 before 7 that may be taken back
    recorder, drafting = Recorder(), Speculation
    plain = made(engine_plan, Late(1, 0.0), load(engine_plan), drafting(recorder, 6), **LIMITS)
    timely, late = played(plain, mixed(1)), Late(1, 0.5)
    oracle = Oracle(recorder.texts(), PADDED, 0.6, 1, branching=False)
    core = made(engine_plan, late, load(engine_plan), drafting(oracle, 6), **LIMITS)
    same(played(core, mixed(1)), timely)
    assert late.late > 10


def test_what_cannot_run_is_refused(tmp_path: Path) -> None:
    model = served(tmp_path, CONFIG, backend="reference")
    from penstock.backends.registry import backend

    with pytest.raises(ConfigError, match=r"convolutions \(ShortConv\)"):
        backend("cuda").check_runnable(model.planned().plan)
    with pytest.raises(ConfigError, match="choose a speculative method that drafts chains"):
        backend("cpu").check_runnable(model.planned().plan, trees=True)
