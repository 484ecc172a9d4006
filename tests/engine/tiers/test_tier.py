"""Engines with a disk below their cache: answers are those of one without, bit by bit."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.bitwise import prompt
from support.cached_kinds import KINDS
from support.handed import LLAMA, complete, config, folder_of, plain, request
from support.needs import needs_native
from support.tiered import (
    all_updates,
    check_damage_is_noticed,
    in_order,
    keep_up,
    of_some,
    settle,
    tier,
    tiered,
)

from penstock.cache.geometry import BLOCK_SIZE
from penstock.engine.tiers import saving
from penstock.interface.messages import EngineRequest
from penstock.kvstore import workers

pytestmark = [needs_native, pytest.mark.usefixtures("always_read")]

SMALL = 32 * 12288
"""Bytes of a cache of 32 blocks of LLAMA, those of four of the prompts below."""


def conversation(turns: int, seed: int = 1) -> list[list[int]]:
    """The prompts of a conversation, each of which begins with the one before."""
    text = prompt(seed, 60 + 90 * turns)
    return [text[: 60 + 90 * (turn + 1)] for turn in range(turns)]


@pytest.mark.parametrize("kind", KINDS)
def test_answers_are_those_of_an_engine_without(kind: str, tmp_path: Path) -> None:
    model, options = KINDS[kind]
    folder = folder_of(tmp_path, model)
    alone = plain(config(folder, **options))
    expected = in_order(complete(alone, of_some("")))
    alone.close()
    disk = config(folder, kv_disk=f"{tmp_path / 'kv'}:100MB", **options)
    with tiered(disk) as core:
        assert in_order(complete(core, of_some(""))) == expected
        assert tier(core).restored_tokens == 0
    with tiered(disk) as core:  # a restart
        assert in_order(complete(core, of_some(""))) == expected
        found = tier(core)
        assert found.restored_tokens >= (160 + 128 + 160 + 288)  # of "b", what "a" has not
        assert (found.damaged_blocks, found.failures) == (0, 0)
        # What the disk has is not computed again.
        assert found.written_bytes == 0


def test_what_the_pool_forgets_is_read(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, LLAMA)
    prompts = [prompt(seed, 200) for seed in range(8)]
    alone = plain(config(folder))
    expected = [complete(alone, [request("a", each)]) for each in prompts]
    alone.close()
    with tiered(config(folder, kv_cache_bytes=SMALL, kv_disk=f"{tmp_path / 'kv'}:100MB")) as core:
        for _ in range(2):
            for each, answer in zip(prompts, expected, strict=True):
                assert complete(core, [request("a", each)]) == answer
                settle(core)
        stats = core.stats()
        assert tier(core).restored_tokens == 8 * 192
        fetches = tier(core).fetch_seconds
        assert fetches is not None
        assert fetches.count == tier(core).fetches == 8
        assert 0 < fetches.total < 60
        assert stats.prefix_hits == 8 * 192
        # Requests say what they got.
        core.add_request(request("last", prompts[0]))
        updates = all_updates(core)
        assert updates[0].num_cached_tokens == updates[0].num_restored_tokens == 192


def test_an_answer_of_one_token_is_counted_as_others_are(tmp_path: Path) -> None:
    """Its sequence has ended when the step that it started in is over."""
    disk = config(folder_of(tmp_path, LLAMA), kv_disk=f"{tmp_path / 'kv'}:100MB")
    asked = [request("a", prompt(1, 200), max_tokens=1)]
    with tiered(disk) as core:
        complete(core, asked)
        settle(core)
    with tiered(disk) as core:
        core.add_request(asked[0])
        updates = all_updates(core)
        assert [each.num_restored_tokens for each in updates] == [192]
        assert tier(core).restored_tokens == 192


@pytest.mark.parametrize("kind", ["bfloat16", "int8", "windows"])
def test_preempted_sequences_come_back_from_disk(kind: str, tmp_path: Path) -> None:
    """The prompts are all new: what is read can only be what sequences had to give back."""
    model, options = KINDS[kind]
    folder = folder_of(tmp_path, model)
    asked = [
        request(f"{seed}", prompt(seed, 130), temperature=1.0, seed=seed, max_tokens=300)
        for seed in range(4)
    ]
    alone = plain(config(folder, enable_prefix_caching=False, **options))
    expected = complete(alone, asked)
    assert alone.stats().preemptions == 0
    alone.close()
    small = {"bfloat16": SMALL, "int8": SMALL * 5 // 9, "windows": SMALL * 3 // 4}[kind]
    disk = config(folder, kv_disk=f"{tmp_path / 'kv'}:100MB", kv_cache_bytes=small, **options)
    with tiered(disk) as core:
        assert complete(core, asked, lambda: keep_up(core)) == expected
        found = tier(core)
        assert core.stats().preemptions > 0
        assert found.restored_tokens > 0
        assert (found.damaged_blocks, found.failures) == (0, 0)


def test_a_prompt_that_is_preempted_half_way_comes_back_from_disk(tmp_path: Path) -> None:
    """It has as many tokens as when it was looked for first, and nothing of it was there."""
    folder = folder_of(tmp_path, LLAMA)
    short = [request(f"a{n}", prompt(n, 62), max_tokens=200) for n in range(4)]
    asked = [*short, request("b", prompt(9, 20 * BLOCK_SIZE - 1))]
    options: dict[str, Any] = {"max_num_batched_tokens": 16, "max_num_seqs": 5}
    alone = plain(config(folder, enable_prefix_caching=False, **options))
    expected = complete(alone, asked)
    alone.close()
    disk = config(folder, kv_disk=f"{tmp_path / 'kv'}:100MB", kv_cache_bytes=SMALL, **options)
    with tiered(disk) as core:
        assert complete(core, asked, lambda: keep_up(core)) == expected
        assert core.stats().preemptions > 0
        assert tier(core).restored_tokens > 0


def test_what_the_disk_has_lost_is_written_again(tmp_path: Path) -> None:
    """The pool has it, and never computes it a second time."""
    folder = folder_of(tmp_path, LLAMA)
    size = 30 * 12288
    asked = request("a", prompt(1, 200))
    with tiered(config(folder, kv_disk=f"{tmp_path / 'kv'}:{size}")) as core:
        expected = complete(core, [asked])
        settle(core)
        for seed in range(2, 10):
            complete(core, [request("b", prompt(seed, 200))])
            settle(core)
        assert tier(core).evicted_blocks > 6
        written = tier(core).written_bytes
        assert complete(core, [asked]) == expected
        settle(core)
        assert tier(core).written_bytes > written
        assert tier(core).restored_tokens == 0
    with tiered(config(folder, kv_disk=f"{tmp_path / 'kv'}:{size}")) as core:
        assert complete(core, [asked]) == expected
        assert tier(core).restored_tokens == 192


def test_a_prompt_stays_for_as_long_as_was_asked(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, LLAMA)
    disk = config(folder, kv_disk=f"{tmp_path / 'kv'}:{60 * 12288}")
    kept, plainly = request("k", prompt(1, 200)), request("p", prompt(99, 200))
    with tiered(disk) as core:
        expected = complete(core, [msgspec.structs.replace(kept, keep_s=3600.0)])
        complete(core, [plainly])
        for seed in range(2, 30):
            complete(core, [request("b", prompt(seed, 200))])
            settle(core)
    with tiered(disk) as core:
        assert complete(core, [kept]) == expected
        assert tier(core).restored_tokens == 192
        complete(core, [plainly])
        assert tier(core).restored_tokens == 192


def test_others_conversations_are_never_restored_under_load(tmp_path: Path) -> None:
    """Many conversations at once, of equal beginnings and of several salts, turn after turn,
    through a pool and a disk that hold a part of them, with a restart between turns."""
    folder = folder_of(tmp_path, LLAMA)
    shared, turns, people = prompt(9, 70), 3, 6
    talks = {
        (person, salt): [shared + each for each in conversation(turns, person)]
        for person in range(people)
        for salt in ("", "one", "two")
    }

    def turn_of(turn: int) -> list[EngineRequest]:
        return [
            request(f"{person}{salt}", talk[turn], salt=salt, max_tokens=6)
            for (person, salt), talk in talks.items()
        ]

    alone = plain(config(folder, enable_prefix_caching=False))
    expected = [complete(alone, turn_of(turn)) for turn in range(turns)]
    alone.close()
    restored = 0
    options = {"kv_cache_bytes": 2 * SMALL, "kv_disk": f"{tmp_path / 'kv'}:{120 * 12288}"}
    for turn in range(turns):
        with tiered(config(folder, **options)) as core:
            assert complete(core, turn_of(turn)) == expected[turn]
            settle(core)
            assert complete(core, turn_of(turn)) == expected[turn]
            found = tier(core)
            restored += found.restored_tokens
            assert (found.damaged_blocks, found.failures) == (0, 0)
            assert found.evicted_blocks or turn == 0
    assert restored > 1000


def test_a_flipped_bit_is_noticed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    disk = config(folder_of(tmp_path, LLAMA), kv_disk=f"{tmp_path / 'kv'}:100MB")
    check_damage_is_noticed(lambda: tiered(disk), tmp_path, caplog)


def test_two_engines_share_a_directory(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, LLAMA)
    disk = config(folder, kv_disk=f"{tmp_path / 'kv'}:100MB")
    with tiered(disk) as one, tiered(disk) as other:
        expected = complete(one, [request("a", prompt(1, 300))])
        settle(one)
        end = time.monotonic() + 60
        while tier(other).blocks < 9 and time.monotonic() < end:
            time.sleep(0.05)
        assert complete(other, [request("a", prompt(1, 300))]) == expected
        assert tier(other).restored_tokens == 288
    # What other options make of the model is another kind of blocks.
    with tiered(config(folder, kv_disk=disk.kv_disk, kv_cache_dtype="int8")) as core:
        complete(core, [request("a", prompt(1, 300))])
        assert tier(core).restored_tokens == 0


def test_resetting_the_prefix_cache_forgets_the_disk_too(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, LLAMA)
    with tiered(config(folder, kv_disk=f"{tmp_path / 'kv'}:100MB")) as core:
        expected = complete(core, [request("a", prompt(1, 300))])
        settle(core)
        core.reset_prefix_cache()
        end = time.monotonic() + 60
        while tier(core).blocks and time.monotonic() < end:
            time.sleep(0.05)
        assert complete(core, [request("a", prompt(1, 300))]) == expected
        assert core.stats().prefix_hits == 0


def test_blocks_are_saved_however_large_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of Llama 2 7B take 16 MiB, of 65B 80 MiB: more than is copied, or waits, at once."""
    folder = folder_of(tmp_path, LLAMA)
    disk = config(folder, kv_disk=f"{tmp_path / 'kv'}:100MB")
    monkeypatch.setattr(saving, "STEP_BYTES", 10_000)
    monkeypatch.setattr(workers, "QUEUE_BYTES", 10_000)
    with tiered(disk) as core:
        expected = complete(core, [request("a", prompt(1, 300))])
        settle(core)
        assert tier(core).blocks == 9
    with tiered(disk) as core:
        assert complete(core, [request("a", prompt(1, 300))]) == expected
        assert tier(core).restored_tokens == 288
