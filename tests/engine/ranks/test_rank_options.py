"""The option tensor_parallel: what is decided by it, and what is refused."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.machines import plain, write
from support.needs import needs_native

from penstock.backends.registry import backend
from penstock.config import EngineConfig
from penstock.engine.engine_plan import rank_limits
from penstock.engine.loader import plan_engine
from penstock.errors import ConfigError
from penstock.gpu import Gpu, GpuSearch
from penstock.hardware import Hardware, detect
from penstock.speculative_config import QuantizedSelf
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


def with_gpus(count: int) -> Hardware:
    """This machine, had it so many GPUs."""
    gpu = Gpu("NVIDIA H100", 80 << 30, 79 << 30, 132, (9, 0), count=count)
    return replace(detect(), gpu=GpuSearch(gpu))


@pytest.mark.parametrize(
    ("count", "message"),
    [
        (1, "this machine has 1 GPU, and tensor_parallel 3 needs 3, one for each rank; take fewer"),
        (2, "this machine has 2 GPUs, and tensor_parallel 3 needs 3.*CUDA_VISIBLE_DEVICES"),
    ],
)
def test_each_rank_needs_a_gpu(count: int, message: str) -> None:
    config = EngineConfig(backend="cuda", tensor_parallel=3)
    with pytest.raises(ConfigError, match=message):
        plan_engine(config, hardware=with_gpus(count))


@needs_native
def test_where_gpus_are_too_few_the_cpu_computes() -> None:
    config = plan_engine(EngineConfig(tensor_parallel=2), hardware=with_gpus(1)).config
    assert config.backend == "cpu"
    assert any("cuda is not used: this machine has 1 GPU" in note for note in config.notes)


def test_what_drafts_is_refused_beside_ranks_on_gpus() -> None:
    config = EngineConfig(backend="cuda", tensor_parallel=2, speculative=QuantizedSelf())
    with pytest.raises(ConfigError, match=r"tensor_parallel 2 on GPUs .*--speculative ngram"):
        plan_engine(config, hardware=with_gpus(2))


def test_the_caches_of_ranks_on_gpus_have_as_many_blocks() -> None:
    pytest.importorskip("triton", reason="triton is not installed")
    asked = EngineConfig(backend="cuda", tensor_parallel=3, max_num_seqs=4)
    made = plan_engine(asked, hardware=with_gpus(3))
    pages = [plan.kv_groups.page_bytes for plan in made.ranks]
    assert made.config.kv_cache_bytes == made.config.num_blocks * sum(pages)
    assert made.config.threads == 3
    small = msgspec.structs.replace(asked, kv_cache_bytes=400 << 30)
    with pytest.raises(ConfigError, match=r"the GPU of each rank has 79.00 GiB free.*more ranks"):
        plan_engine(small, hardware=with_gpus(3))


def test_the_process_of_a_rank_sees_its_own_gpu() -> None:
    seen = backend("cuda").environment_of_rank
    assert seen(2, {"A": "b"}) == {"A": "b", "CUDA_VISIBLE_DEVICES": "2"}
    hidden = {"CUDA_VISIBLE_DEVICES": "4, GPU-5f,6"}
    assert [seen(rank, hidden)["CUDA_VISIBLE_DEVICES"] for rank in (1, 2)] == ["GPU-5f", "6"]
    assert seen(1, {"TRITON_INTERPRET": "1"}) == {"TRITON_INTERPRET": "1"}
    assert backend("cpu").environment_of_rank(1, hidden) == hidden
