"""The option tensor_parallel: what is decided by it, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from support.machines import plain, write
from support.needs import needs_native

from penstock.config import EngineConfig
from penstock.engine.engine_plan import rank_limits
from penstock.engine.loader import plan_engine
from penstock.errors import ConfigError
from penstock.hardware import detect
from penstock.threads import divided


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tensor_parallel": 0}, "tensor_parallel must be 1 to 256, not 0; leave it out"),
        ({"tensor_parallel": -1}, "must be 1 to 256, not -1"),
        ({"tensor_parallel": 1000}, "must be 1 to 256, not 1000"),
        ({"tensor_parallel": 5}, "tensor_parallel 5: 5 ranks cannot share 4 heads .* at most 4"),
    ],
)
def test_what_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan_engine(EngineConfig(backend="reference", **options))


@needs_native
def test_what_is_decided_and_why() -> None:
    one = plan_engine(EngineConfig(backend="cpu", threads=6))
    several = plan_engine(EngineConfig(backend="cpu", threads=6, tensor_parallel=4))
    config = several.config
    assert config.tensor_parallel == 4
    assert (config.threads, config.artifact_dir) == (6, one.config.artifact_dir)
    assert config.reasons["threads"] == "as asked; 4 ranks have 1 or 2 threads each"
    assert re.search(r"^tensor_parallel +4  \(as asked: so many", config.explain(), re.MULTILINE)
    assert [rank_limits(several, rank).threads for rank in range(4)] == [1, 2, 1, 2]
    # Two KV heads, each of which two ranks cache.
    heads = {layer.kv_heads for layer in one.plan.kv_layers}
    pages = sum(plan.kv_groups.page_bytes for plan in several.ranks)
    assert config.kv_cache_bytes == config.num_blocks * pages
    assert pages == one.plan.kv_groups.page_bytes * max(1, 4 // heads.pop())
    assert config.weight_bytes > one.config.weight_bytes  # embeddings are everybody's
    assert one.ranks == ()
    assert "tensor_parallel" not in one.config.reasons


def test_threads_are_divided() -> None:
    assert divided(4, (0, 2, 4, 6), 2) == ((2, (0, 2)), (2, (4, 6)))
    assert divided(5, (), 2) == ((2, ()), (3, ()))
    assert divided(3, (), 3) == ((1, ()),) * 3


def test_ranks_have_a_thread_each_at_least(tmp_path: Path) -> None:
    config = EngineConfig(backend="reference", threads=1, tensor_parallel=3)
    hardware = detect(write(tmp_path, plain(range(2))), frozenset(range(2)))
    small = plan_engine(config, hardware=hardware).config
    assert (small.threads, small.cpus) == (3, ())
    assert small.reasons["threads"] == "one for each of 3 ranks"
    assert any("3 ranks, each with a thread of its own, take turns" in n for n in small.notes)
