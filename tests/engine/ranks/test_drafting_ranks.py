"""Drafts for a model that ranks share: rank 0 makes them, all verify, and outputs stay the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.drafting import REQUESTS, check, eagle3, slow, start
from support.head_checkpoints import target_folder
from support.needs import require_native

from penstock.config import EngineConfig
from penstock.engine.loader import plan_engine
from penstock.speculative_config import Eagle, Ngram, parse_speculative


@pytest.mark.parametrize(
    ("method", "world"),
    [
        ("ngram:min_match=1,adaptive=false", 2),
        ("eagle:width=3,depth=3,num_tokens=9,adaptive=false", 3),
        slow("ngram:min_match=1,adaptive=false", 3),
        slow("draft:adaptive=false", 2),
        slow("draft:adaptive=false", 4),
        slow("self:adaptive=false", 2),
        slow("medusa:adaptive=false", 2),
        slow("medusa:adaptive=false", 3),
        slow("eagle:adaptive=false", 2),
        slow("eagle:adaptive=true", 2),
    ],
)
def test_on_the_cpu(method: str, world: int) -> None:
    check(method, {"tensor_parallel": world})


@pytest.mark.slow
@pytest.mark.parametrize("method", ["ngram:min_match=1,adaptive=false", "medusa:adaptive=false"])
def test_on_the_reference_backend(method: str) -> None:
    check(method, {"tensor_parallel": 2}, backend="reference")


@pytest.mark.slow
def test_an_int4_cache_whose_accepted_paths_are_moved() -> None:
    tree = "eagle:width=3,depth=3,num_tokens=9,adaptive=false"
    check(tree, {"tensor_parallel": 2}, kv_cache_dtype="int4", quantization="int4")


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, slow(4)])
def test_a_head_that_reads_taps_of_several_layers(tmp_path: Path, world: int) -> None:
    """Rank 0 drafts from streams to which all ranks add columns, in a cache of two requests of
    four."""
    model: dict[str, Any] = {
        "model": str(target_folder()),
        "dtype": "float32",
        "max_model_len": 128,
        "max_num_batched_tokens": 48,
        "enable_prefix_caching": False,
    }
    with start(**model) as one:
        expected = REQUESTS.together(one)
    planned = plan_engine(
        EngineConfig(
            backend="cpu",
            max_num_seqs=4,
            tensor_parallel=world,
            speculative=parse_speculative(eagle3(tmp_path)),
            **model,
        )
    ).config
    cache = 6 * (planned.kv_cache_bytes // planned.num_blocks)
    with start(
        **model, tensor_parallel=world, speculative=eagle3(tmp_path), kv_cache_bytes=cache
    ) as several:
        assert REQUESTS.together(several) == expected
        drafts = several.stats().drafts
        assert drafts is not None
        assert drafts.draft_tokens > 50
        several.check_integrity()


def test_rank_0_drafts_alone_on_the_threads_of_all() -> None:
    require_native()
    config = EngineConfig(
        backend="cpu", threads=2, tensor_parallel=2, speculative=parse_speculative("self")
    )
    engine_plan = plan_engine(config)
    draft = engine_plan.draft
    assert draft is not None
    assert len(engine_plan.ranks) == 2
    assert draft.ranks == ()
    assert (draft.config.tensor_parallel, draft.config.threads) == (1, 2)
    # Its keys and values are beside those of all ranks, in the same blocks.
    pages = [plan.kv_groups.page_bytes for plan in (*engine_plan.ranks, draft.plan)]
    assert engine_plan.config.kv_cache_bytes == engine_plan.config.num_blocks * sum(pages)


@pytest.mark.parametrize("method", [Ngram(), Eagle()])
def test_ranks_reserve_rows_for_drafts(method: Ngram | Eagle) -> None:
    """As one process would."""
    one, several = (
        plan_engine(EngineConfig(backend="reference", tensor_parallel=n, speculative=method))
        for n in (1, 2)
    )
    assert several.config.max_logit_rows == one.config.max_logit_rows
    assert several.config.rows_per_sequence == one.config.rows_per_sequence
