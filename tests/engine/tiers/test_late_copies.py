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
from support.late_device import LateDevice, late
from support.needs import needs_native
from support.tiered import all_updates, check_damage_is_noticed, in_order, of_some, tier

from penstock.engine.core import EngineCore
from penstock.engine.loader import plan_engine
from penstock.engine.tiers.host_blocks import HostBlocks
from penstock.engine.tiers.rule import ReadingCosts
from penstock.errors import EngineDeadError

pytestmark = [needs_native, pytest.mark.usefixtures("always_read")]

BLOCK = 12288
"""Bytes of a block of LLAMA."""


def host(core: Any) -> Any:
    found = core.stats().host_tier
    assert found is not None
    return found


def device_of(core: EngineCore) -> LateDevice:
    device = core._executor
    assert isinstance(device, LateDevice)
    return device


def check_host(core: Any) -> None:
    for store in core._tiers._stores:
        if isinstance(store, HostBlocks):
            store.check_integrity()


DEVICES = {k: KINDS[k] for k in ("bfloat16", "int8", "int4", "windows", "latents", "drafts")}


@pytest.mark.parametrize("haste", [0.02, 0.5])
@pytest.mark.parametrize("kind", DEVICES)
def test_answers_are_those_of_an_engine_without(kind: str, haste: float, tmp_path: Path) -> None:
    model, options = KINDS[kind]
    folder = folder_of(tmp_path, model)
    alone = plain(config(folder, **options))
    expected = in_order(complete(alone, of_some("")))
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
                    assert (
                        in_order(complete(core, of_some(name), lambda: check_host(core)))
                        == expected
                    )
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


def test_requests_say_which_tier_their_tokens_came_from(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, LLAMA)
    options: dict[str, Any] = {"kv_disk": f"{tmp_path / 'kv'}:100MB", "kv_cache_bytes": 32 * BLOCK}
    first, second = prompt(1, 330), prompt(2, 200)
    with late(config(folder, **options), 4 << 20) as core:
        complete(core, [request("a", first[:200])])
        settle_all(core)
    with late(config(folder, **options), 4 << 20) as core:
        complete(core, [request("b", second)])
        for seed in range(5, 10):  # the pool forgets it
            complete(core, [request("c", prompt(seed, 200))])
        settle_all(core)
        for name, tokens, disk, host_tokens in (("d", first, 192, 0), ("e", second, 0, 192)):
            core.add_request(request(name, tokens))
            updates = [update for update in all_updates(core) if update.num_cached_tokens]
            assert updates[0].num_restored_tokens == disk + host_tokens
            assert updates[0].num_host_tokens == host_tokens
        # What came from disk is in the host's memory from then on.
        for seed in range(10, 15):
            complete(core, [request("c", prompt(seed, 200))])
        settle_all(core)
        core.add_request(request("f", first))
        updates = [update for update in all_updates(core) if update.num_cached_tokens]
        assert updates[0].num_restored_tokens == updates[0].num_host_tokens == 320
        assert host(core).restored_tokens == 192 + 320
        assert tier(core).restored_tokens == 192
        assert host(core).fetches == 2
        assert host(core).read_seconds > 0
        assert tier(core).fetches == 1


@pytest.mark.parametrize("kind", ["bfloat16", "windows"])
def test_preempted_sequences_come_back(kind: str, tmp_path: Path) -> None:
    """The prompts are all new: what comes can only be what sequences had to give back."""
    model, options = KINDS[kind]
    folder = folder_of(tmp_path, model)
    wanted = [
        request(f"{seed}", prompt(seed, 130), temperature=1.0, seed=seed, max_tokens=300)
        for seed in range(4)
    ]
    alone = plain(config(folder, enable_prefix_caching=False, **options))
    expected = complete(alone, wanted)
    assert alone.stats().preemptions == 0
    alone.close()
    small = options | {"kv_cache_bytes": 32 * block_bytes(folder, options) * 3 // 4}
    small["max_model_len"] = 480
    with late(config(folder, **small), 4 << 20) as core:
        assert complete(core, wanted, lambda: check_host(core)) == expected
        assert core.stats().preemptions > 0
        assert host(core).restored_tokens > 0
        assert device_of(core).waits > 0


def test_sequences_may_end_while_their_blocks_land(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, LLAMA)
    small = config(folder, kv_cache_bytes=32 * BLOCK)
    prompts = [prompt(seed, 200) for seed in range(8)]
    with late(small, 4 << 20, haste=0.0) as core:
        expected = [complete(core, [request("a", each)]) for each in prompts]
        settle_all(core)
        core.add_request(request("long", prompt(20, 40), max_tokens=60))
        while not core.num_running:
            core.step()
        for turn in range(12):  # blocks are found, asked for, and on their way
            core.add_request(request("b", prompts[turn % 8]))
            for _ in range(turn % 4):
                core.step()
            core.abort(["b"])
            core.check_integrity()
            check_host(core)
        all_updates(core)
        for number, each in enumerate(prompts):
            answers = complete(core, [request(f"c{number}", each)])
            assert answers[f"c{number}", 0] == expected[number]["a", 0]
        assert host(core).restored_tokens > 0


def test_what_is_reset_is_found_no_more(tmp_path: Path) -> None:
    """Also what was on its way."""
    folder = folder_of(tmp_path, LLAMA)
    options = {"kv_disk": f"{tmp_path / 'kv'}:100MB"}
    with late(config(folder, **options), 4 << 20, haste=0.0) as core:
        expected = complete(core, [request("a", prompt(1, 300))])
        core.step()
        assert core._tiers is not None
        assert any(saving.is_leaving for saving in core._tiers._savings)
        core.reset_prefix_cache()
        settle_all(core)
        assert host(core).blocks == 0
        assert complete(core, [request("a", prompt(1, 300))]) == expected
        assert core.stats().prefix_hits == 0
        check_host(core)


def test_a_flipped_bit_on_disk_is_noticed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The thread that reads it compares checksums, and the device nothing."""
    disk = config(folder_of(tmp_path, LLAMA), kv_disk=f"{tmp_path / 'kv'}:100MB")
    check_damage_is_noticed(lambda: late(disk), tmp_path, caplog)


def test_the_faster_store_is_read_where_the_slower_is_not_worth_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folder_of(tmp_path, LLAMA)
    options: dict[str, Any] = {"kv_disk": f"{tmp_path / 'kv'}:100MB", "kv_cache_bytes": 32 * BLOCK}
    first = prompt(1, 330)
    with late(config(folder, **options), 4 << 20) as core:
        expected = complete(core, [request("a", first)])
        settle_all(core)
    monkeypatch.setattr(ReadingCosts, "worth", lambda self, tokens, sizes, waiting: not sizes[1])
    with late(config(folder, **options), 4 << 20) as core:
        complete(core, [request("b", first[:100])])
        for seed in range(5, 10):  # the pool forgets it
            complete(core, [request("c", prompt(seed, 200))])
        settle_all(core)
        assert complete(core, [request("a", first)]) == expected
        assert host(core).restored_tokens in (64, 96)  # the pool may have its first block yet
        assert tier(core).restored_tokens == 0
        assert tier(core).declined > 0


def test_a_device_that_fails_ends_the_engine_and_nothing_hangs(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, LLAMA)
    with late(config(folder), 4 << 20, haste=0.0) as core:
        complete(core, [request("a", prompt(1, 300))])
        core.step()
        device_of(core).fail()
        with pytest.raises(EngineDeadError):
            settle_all(core)
