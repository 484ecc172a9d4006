"""Drafts for a model whose layers several stages have: the engine's own process makes them, all
stages verify, and outputs stay the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.drafting import check, eagle3, slow
from support.head_checkpoints import target_folder
from support.needs import require_native
from support.waiting_stage import waiting

from penstock.config import EngineConfig
from penstock.engine.loader import plan_engine
from penstock.speculative_config import parse_speculative


@pytest.mark.parametrize(
    ("method", "stages"),
    [
        ("ngram:min_match=1,adaptive=false", {"pipeline_parallel": 3}),
        ("eagle:width=3,depth=3,num_tokens=9,adaptive=false", {"pipeline_parallel": 2}),
        slow("draft:adaptive=false", {"pipeline_parallel": 2}),
        slow("self:adaptive=false", {"pipeline_parallel": 2}),
        slow("medusa:adaptive=false", {"pipeline_parallel": 3}),
        slow("eagle:adaptive=true", {"pipeline_parallel": 2, "tensor_parallel": 2}),
        slow("ngram:min_match=1,adaptive=false", {"pipeline_parallel": 2, "tensor_parallel": 2}),
    ],
)
def test_on_the_cpu(method: str, stages: dict[str, Any]) -> None:
    check(method, stages)


@pytest.mark.slow
def test_on_the_reference_backend() -> None:
    check("medusa:adaptive=false", {"pipeline_parallel": 2}, backend="reference")


@pytest.mark.slow
@pytest.mark.parametrize(
    "stages",
    [
        {"pipeline_parallel": 2},
        slow({"pipeline_parallel": 3}),
        slow({"pipeline_parallel": 2, "tensor_parallel": 2}),
    ],
)
def test_a_head_that_reads_taps_of_layers_of_other_stages(
    tmp_path: Path, stages: dict[str, Any]
) -> None:
    """These are handed on to the engine's process."""
    model: dict[str, Any] = {
        "model": str(target_folder()),
        "dtype": "float32",
        "max_model_len": 128,
        "max_num_batched_tokens": 48,
    }
    check(eagle3(tmp_path), stages, **model)


@pytest.mark.parametrize("ranks", [1, slow(2)])
def test_a_stage_elsewhere_needs_no_drafts_of_its_own(tmp_path: Path, ranks: int) -> None:
    """Its host has the model alone."""
    model = str(target_folder())
    options = {"model": model, "dtype": "float32", "max_model_len": 128}
    with waiting(model) as there:
        stages = {"pipeline_stages": there.address, "tensor_parallel": ranks}
        check(eagle3(tmp_path), stages, **options)


def test_the_engine_drafts_alone_on_the_threads_of_all() -> None:
    require_native()
    config = EngineConfig(
        backend="cpu", threads=2, pipeline_parallel=2, speculative=parse_speculative("self")
    )
    engine_plan = plan_engine(config)
    draft = engine_plan.draft
    assert draft is not None
    assert len(engine_plan.stages) == 2
    assert draft.stages == ()
    assert (draft.config.pipeline_parallel, draft.config.threads) == (1, 2)
    # Its keys and values are beside those of all stages, in the same blocks.
    parts = [stage.plan for stage in engine_plan.stages]
    pages = [plan.kv_groups.page_bytes for plan in (*parts, draft.plan)]
    assert engine_plan.config.kv_cache_bytes == engine_plan.config.num_blocks * sum(pages)
