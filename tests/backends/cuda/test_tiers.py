"""Tiers below the pool of the cuda backend: answers are those of an engine without, bit by bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="triton is not installed")

from support.bitwise import prompt
from support.cached_kinds import KINDS
from support.families import edited
from support.handed import LLAMA, complete, config, folder_of, plain, request
from support.tiered import flip, segments, settle, tier, tiered

from penstock.cache.geometry import BLOCK_SIZE
from penstock.engine.block_identity import BlockIdentity
from penstock.engine.loader import plan_engine
from penstock.errors import ConfigError
from penstock.interface.blocks import BLOCK_LAYOUT, DEVICE_LAYOUT

pytestmark = pytest.mark.usefixtures("always_read")

BLOCK = 12288
"""Bytes of a block of LLAMA."""
CUDA: dict[str, Any] = {"backend": "cuda", "threads": None}

DEVICES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    name: KINDS[name] for name in ("bfloat16", "float32", "int8", "windows", "latents", "drafts")
}
DEVICES |= {name: (LLAMA, {"kv_cache_dtype": name}) for name in ("fp8", "k8v4", "int4")}


@pytest.mark.parametrize(
    "kind",
    ["int8", *(pytest.param(kind, marks=pytest.mark.slow) for kind in DEVICES if kind != "int8")],
)
def test_answers_are_those_of_an_engine_without(kind: str, tmp_path: Path) -> None:
    """What the pool forgets comes from the host's memory, which forgets in turn, and from disk,
    also after a restart; and nothing of it goes to another salt."""
    model, options = DEVICES[kind]
    folder = folder_of(tmp_path, model)
    usual = CUDA | options
    planned = plan_engine(config(folder, **usual)).config
    block = planned.kv_cache_bytes // planned.num_blocks
    groups = len(plan_engine(config(folder, **usual)).plan.kv_groups)
    shared = prompt(1, 2 * BLOCK_SIZE + 3)
    asked = [
        request("a", shared, max_tokens=2),
        request("b", prompt(2, 2 * BLOCK_SIZE + 1), max_tokens=2, temperature=1.0, seed=3),
        request("c", shared, salt="salt", max_tokens=2),
    ]
    alone = plain(config(folder, **usual))
    expected = [complete(alone, [each]) for each in asked]
    alone.close()
    small = usual | {
        "max_model_len": 4 * BLOCK_SIZE,
        "kv_cache_bytes": 5 * groups * block,
        "kv_host_bytes": 5 * groups * block,
        "kv_disk": f"{tmp_path / 'kv'}:100MB",
    }
    found = [0, 0]
    for start in range(2):
        with tiered(config(folder, **small)) as core:
            for turn in (0, 1, 2, 0, 2) if start == 0 else (2, 1):
                assert complete(core, [asked[turn]]) == expected[turn]
                settle(core)
            stats = core.stats()
            assert stats.tier is not None
            assert stats.host_tier is not None
            assert (stats.tier.damaged_blocks, stats.tier.failures) == (0, 0)
            found[0] += stats.host_tier.restored_tokens
            found[1] += stats.tier.restored_tokens
            if start == 0:
                first = stats.tier
    assert first.written_bytes > 0
    assert stats.tier.written_bytes == 0  # the disk has all of it
    assert found[0] + found[1] >= 4 * BLOCK_SIZE
    assert found[1] >= 2 * BLOCK_SIZE


@pytest.mark.slow
def test_a_flipped_bit_on_disk_is_noticed(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, LLAMA)
    disk = config(folder, kv_disk=f"{tmp_path / 'kv'}:100MB", **CUDA)
    asked = request("a", prompt(1, 2 * BLOCK_SIZE + 3), max_tokens=2)
    with tiered(disk) as core:
        expected = complete(core, [asked])
    (path,) = segments(tmp_path)
    content = path.read_bytes()
    with tiered(disk) as core:
        blocks = core._tiers._blocks  # type: ignore[union-attr]
        assert complete(core, [asked]) == expected
        assert tier(core).restored_tokens == 2 * BLOCK_SIZE
        keys = core._scheduler.cache.keyed._index._blocks[0]
        rows = [blocks.take([key], 0).wait().rows[0].tobytes() for key in keys]
    places = [content.find(row) for row in rows]
    assert all(place > 0 for place in places)
    flip(path, max(places) + 777)
    with tiered(disk) as core:
        assert complete(core, [asked]) == expected
        assert tier(core).damaged_blocks == 1
        assert tier(core).restored_tokens < 2 * BLOCK_SIZE


def test_blocks_of_a_cpu_are_another_kind(tmp_path: Path) -> None:
    """As are those of other products, and of a GPU of another kind."""
    folder = folder_of(tmp_path, LLAMA)
    own = BlockIdentity.of(plan_engine(config(folder, **CUDA)))
    assert own.kernels.startswith("cuda ")
    assert "triton" in own.kernels
    cpu = BlockIdentity.of(plan_engine(config(folder)))
    assert (own.kv_layout, cpu.kv_layout) == (DEVICE_LAYOUT, BLOCK_LAYOUT)
    assert own.differences(cpu, any_kernels=True)
    loose = BlockIdentity.of(plan_engine(config(folder, deterministic=False, **CUDA)))
    assert own.differences(loose)
    assert msgspec.structs.replace(loose, kernels=own.kernels) == own


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kv_host_bytes": 1 << 60}, "kv_host_bytes .* cannot be swapped out"),
        ({"kv_host_bytes": 0}, "at least 1"),
        ({"kv_host_bytes": 1 << 20, "enable_prefix_caching": False}, "leave one of both out"),
        ({"kv_host_bytes": 1 << 20, "tensor_parallel": 2}, "several ranks"),
        ({"kv_host_bytes": 1 << 20, "backend": "cpu"}, "set kv_cache_bytes to more"),
        ({"kv_host_bytes": 1 << 20, "backend": "reference"}, "set kv_cache_bytes to more"),
    ],
    ids=["too much", "none", "no prefixes", "ranks", "cpu", "reference"],
)
def test_what_cannot_be_had_is_refused(
    options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        plan_engine(config(folder_of(tmp_path, LLAMA), **CUDA | options))


def test_models_that_keep_states_are_refused(tmp_path: Path) -> None:
    model = edited("mamba2", num_hidden_layers=2, time_step_limit=[0.0, 1e9])
    options = {"kv_host_bytes": 1 << 20, "kv_cache_bytes": None, **CUDA}
    with pytest.raises(ConfigError):
        plan_engine(config(folder_of(tmp_path, model), **options))


def test_less_than_a_block_is_refused(tmp_path: Path) -> None:
    asked = config(folder_of(tmp_path, LLAMA), kv_host_bytes=1000, **CUDA)
    with pytest.raises(ConfigError, match="takes 12,288 bytes"), tiered(asked):
        pass


def test_memory_that_cannot_be_pinned_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock.backends.cuda.block_mover import DeviceBlocks

    def refused(self: DeviceBlocks, size: int) -> Any:
        raise MemoryError(f"{size:,} bytes cannot be pinned for the GPU: out of memory")

    monkeypatch.setattr(DeviceBlocks, "memory", refused)
    asked = config(folder_of(tmp_path, LLAMA), kv_host_bytes=1 << 20, **CUDA)
    with (
        pytest.raises(ConfigError, match=r"cannot be pinned .* lower it, or leave it out"),
        tiered(asked),
    ):
        pass
