"""Drafts on a GPU, by every method: what comes is what comes without."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="triton is not installed")

from support.drafted import Fickle
from support.grammars import byte_engine_plan
from support.stories import Arrival, Stories, play, same

from penstock.cache.geometry import BLOCK_SIZE
from penstock.cache.kv_cache import KvCache
from penstock.engine.core import EngineCore
from penstock.engine.loader import load_models
from penstock.grammar.spec import GrammarSpec
from penstock.interface.messages import EngineStats
from penstock.sampling.params import SamplingParams
from penstock.speculate.ngram import NgramProposer
from penstock.speculative_config import DraftModel, Ngram, QuantizedSelf

pytestmark = pytest.mark.slow

BLOCK_BYTES = 2 * 16 * BLOCK_SIZE * 4
"""Bytes of a KV block of ``byte_engine_plan``'s model."""
NUM_BLOCKS = 3


def arrivals() -> list[Arrival]:
    """Requests of every kind, more than there are blocks for once each has filled its first."""
    kinds = [
        SamplingParams(temperature=0, max_tokens=7, ignore_eos=True, prompt_logprobs=1),
        SamplingParams(
            temperature=0.7,
            seed=1,
            max_tokens=7,
            ignore_eos=True,
            top_p=0.9,
            repetition_penalty=1.3,
            logprobs=2,
        ),
        SamplingParams(temperature=1.0, grammar=GrammarSpec(kind="regex", text="(ab){3}"), seed=2),
    ]
    return [
        Arrival(0, [97, 98] * 14 + [100 + i], params, 0, None, None, False)
        for i, params in enumerate(kinds)
    ]


def seen(folder: Path, speculative: Any, quiet: float | None = None) -> tuple[Stories, EngineStats]:
    """``quiet``: n-grams are not asked by this probability, so that steps overlap."""
    models = 1 if speculative is None or isinstance(speculative, Ngram) else 2
    engine_plan = byte_engine_plan(
        folder,
        backend="cuda",
        max_num_seqs=3,
        max_num_batched_tokens=128,
        max_model_len=64,
        kv_cache_bytes=NUM_BLOCKS * BLOCK_BYTES * models,
        speculative=speculative,
    )
    loaded = load_models(engine_plan)
    if quiet is None:
        core = EngineCore.of(loaded)
    else:
        drafting = Fickle(NgramProposer(speculative), speculative.num_tokens, quiet)
        core = EngineCore(engine_plan, loaded.executor, drafting)
    assert core.config.num_blocks == NUM_BLOCKS
    stories = play(core, arrivals(), core.check_integrity)
    stats = core.stats()
    core.close()
    return stories, stats


@pytest.fixture(scope="module", autouse=True)
def no_margin() -> Iterator[None]:
    """Sequences are admitted without regard to what running ones will want: some are preempted
    after a few tokens, and not only when they have filled several blocks."""
    begin = KvCache.begin

    def hasty(self: KvCache, *wanted: Any, reserve: int = 0) -> bool:
        return begin(self, *wanted)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(KvCache, "begin", hasty)
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bytes")


@pytest.fixture(scope="module")
def plain(no_margin: None, folder: Path) -> Stories:
    stories, stats = seen(folder, None)
    assert stats.preemptions > 0
    assert stats.drafts is None
    return stories


def test_steps_overlap_between_drafts(plain: Stories, folder: Path) -> None:
    """What was sampled on the device, and by the host from its logits, in turn."""
    asked = Ngram(num_tokens=3, min_match=1, adaptive=False)
    stories, stats = seen(folder, asked, quiet=0.5)
    same(stories, plain)
    assert stats.drafts is not None
    assert stats.drafts.draft_tokens > 0


@pytest.mark.parametrize("method", ["ngram", "draft", "self"])
def test_drafts_change_nothing(method: str, plain: Stories, folder: Path) -> None:
    asked = {
        "ngram": Ngram(num_tokens=3, min_match=1, adaptive=False),
        "draft": DraftModel(model=str(folder), num_tokens=2, adaptive=False),
        "self": QuantizedSelf(num_tokens=2, adaptive=False),
    }
    stories, stats = seen(folder, asked[method])
    same(stories, plain)
    assert stats.preemptions > 0
    assert stats.drafts is not None
    assert stats.drafts.accepted_tokens > 0
    assert stats.drafts.rejections > 0
