"""Tiers below the pool of a device, whose copies are late: answers are those of an engine without,
bit by bit, whatever is on its way."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from support.bitwise import prompt
from support.cached_kinds import KINDS
from support.handed import LLAMA, complete, config, folder_of, plain, request
from support.late_device import late
from support.needs import needs_native
from support.tiered import flip, keep_up, segments, settle, tier, tiered

from penstock.cache.geometry import BLOCK_SIZE
from penstock.engine.loader import plan_engine
from penstock.engine.tiers.host_blocks import HostBlocks
from penstock.engine.tiers.rule import ReadingCosts
from penstock.interface.messages import EngineRequest
from penstock.kvstore.layout import SegmentLayout

pytestmark = needs_native

pytest.importorskip("torch", reason="torch is not installed")

BLOCK = 12288
"""Bytes of a block of LLAMA."""


@pytest.fixture(autouse=True)
def always_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is below the pool is read, however busy the machine is."""
    monkeypatch.setattr(ReadingCosts, "worth", lambda *args: True)
    monkeypatch.setattr(ReadingCosts, "patience_s", lambda *args: 60.0)


def asked(name: str) -> list[EngineRequest]:
    shared = prompt(1, 200)
    return [
        request(f"a{name}", shared),
        request(f"b{name}", shared[:150] + prompt(2, 47), temperature=1.0, seed=3),
        request(f"c{name}", prompt(3, 5 * BLOCK_SIZE), n=2, temperature=1.0, seed=4),
        request(f"d{name}", prompt(4, 5 * BLOCK_SIZE + 1), salt="salt"),
        request(f"e{name}", shared, salt="other"),
        request(f"f{name}", prompt(5, 300), max_tokens=40),
    ]


def in_order(answers: dict[Any, Any]) -> list[Any]:
    return [answers[key] for key in sorted(answers)]


def host(core: Any) -> Any:
    found = core.stats().host_tier
    assert found is not None
    return found


def check_host(core: Any) -> None:
    for store in core._tiers._stores:
        if isinstance(store, HostBlocks):
            store.check_integrity()


PLAIN = {k: KINDS[k] for k in ("bfloat16", "int8", "int4", "windows", "latents", "drafts")}


@pytest.mark.parametrize("haste", [0.02, 0.5])
@pytest.mark.parametrize("kind", PLAIN)
def test_answers_are_those_of_an_engine_without(
    kind: str, haste: float, tmp_path: Path
) -> None:
    model, options = KINDS[kind]
    folder = folder_of(tmp_path, model)
    alone = plain(config(folder, **options))
    expected = in_order(complete(alone, asked("")))
    alone.close()
    block = block_bytes(folder, options)
    small = options | {"kv_cache_bytes": 24 * block, "max_model_len": 480}
    from_host = from_disk = 0
    for seed, (host_blocks, disk) in enumerate([(60, False), (0, True), (20, True), (200, True)]):
        folder_of_blocks = tmp_path / f"kv{seed}"
        more = {"kv_disk": f"{folder_of_blocks}:100MB"} if disk else {}
        for _ in range(2 if disk else 1):  # and after a restart
            with late(config(folder, **small, **more), host_blocks * block, seed, haste) as core:
                for name in ("1", "2", "3"):
                    assert in_order(complete(core, asked(name), lambda: check_host(core))) == expected
                    settle_all(core)
                stats = core.stats()
                for found in (stats.tier, stats.host_tier):
                    if found is not None:
                        assert (found.damaged_blocks, found.failures) == (0, 0)
                from_host += 0 if stats.host_tier is None else stats.host_tier.restored_tokens
                from_disk += 0 if stats.tier is None else stats.tier.restored_tokens
    assert from_host > 300
    assert from_disk > 300


def block_bytes(folder: Path, options: dict[str, Any]) -> int:
    planned = plan_engine(config(folder, **options)).config
    return planned.kv_cache_bytes // planned.num_blocks


def settle_all(core: Any) -> None:
    """Step until all blocks that are to be saved are."""
    deadline = time.monotonic() + 60
    while core.has_work or any(
        found is not None and found.unwritten_bytes
        for found in (core.stats().tier, core.stats().host_tier)
    ):
        assert time.monotonic() < deadline, "blocks are not written"
        core.step()
        time.sleep(0.001)
