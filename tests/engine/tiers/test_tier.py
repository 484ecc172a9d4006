"""Engines with a disk below their cache: answers are those of one without, bit by bit."""

from __future__ import annotations

import errno
import os
import shutil
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from support.bitwise import prompt
from support.cached_kinds import KINDS
from support.families import edited
from support.handed import LLAMA, complete, config, folder_of, plain, request
from support.needs import needs_native
from support.tiered import flip_block, keep_up, segments, settle, tier, tiered

from penstock.cache.geometry import BLOCK_SIZE
from penstock.config import EngineConfig
from penstock.engine.core import EngineCore
from penstock.engine.loader import plan_engine
from penstock.engine.tiers import restoring, saving, tiers
from penstock.engine.tiers.rule import ReadingCosts
from penstock.errors import ConfigError
from penstock.interface.messages import EngineRequest, FinishReason
from penstock.kvstore import workers
from penstock.kvstore.rates import RATES
from penstock.kvstore.segment import Segment

pytestmark = needs_native

SMALL = 32 * 12288
"""Bytes of a cache of 32 blocks of LLAMA, those of four of the prompts below."""


@pytest.fixture(autouse=True)
def always_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is on disk is read, however busy the machine is."""
    monkeypatch.setattr(ReadingCosts, "worth", lambda *args: True)
    monkeypatch.setattr(ReadingCosts, "patience_s", lambda *args: 60.0)


def conversation(turns: int, seed: int = 1) -> list[list[int]]:
    """The prompts of a conversation, each of which begins with the one before."""
    text = prompt(seed, 60 + 90 * turns)
    return [text[: 60 + 90 * (turn + 1)] for turn in range(turns)]


def asked(name: str) -> list[EngineRequest]:
    shared = prompt(1, 200)
    return [
        request(f"a{name}", shared),
        request(f"b{name}", shared[:150] + prompt(2, 47), temperature=1.0, seed=3),
        request(f"c{name}", prompt(3, 5 * BLOCK_SIZE), n=2, temperature=1.0, seed=4),
        request(f"d{name}", prompt(4, 5 * BLOCK_SIZE + 1), salt="salt"),
        request(f"e{name}", prompt(5, 300), max_tokens=40),
    ]


def by_place(answers: dict[Any, Any]) -> list[Any]:
    return [answers[key] for key in sorted(answers)]


@pytest.mark.parametrize("kind", KINDS)
def test_answers_are_those_of_an_engine_without(kind: str, tmp_path: Path) -> None:
    model, options = KINDS[kind]
    folder = folder_of(tmp_path, model)
    alone = plain(config(folder, **options))
    expected = by_place(complete(alone, asked("")))
    alone.close()
    disk = config(folder, kv_disk=f"{tmp_path / 'kv'}:100MB", **options)
    with tiered(disk) as core:
        assert by_place(complete(core, asked(""))) == expected
        assert tier(core).restored_tokens == 0
    with tiered(disk) as core:  # a restart
        assert by_place(complete(core, asked(""))) == expected
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
        updates = iter_steps(core)
        assert updates[0].num_cached_tokens == updates[0].num_restored_tokens == 192


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


def iter_steps(core: Any) -> list[Any]:
    updates = []
    while core.has_work:
        updates += core.step()
    return updates


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
    folder = folder_of(tmp_path, LLAMA)
    disk = config(folder, kv_disk=f"{tmp_path / 'kv'}:100MB")
    with tiered(disk) as core:
        expected = complete(core, [request("a", prompt(1, 300))])
    flip_block(tmp_path, 3)
    for damaged, restored in ((1, 96), (0, 288)):
        with tiered(disk) as core:
            assert complete(core, [request("a", prompt(1, 300))]) == expected
            assert tier(core).damaged_blocks == damaged
            assert caplog.text.count("not what its checksum says") == 1
            assert tier(core).restored_tokens == restored


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


def test_a_sequence_may_end_while_its_blocks_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folder_of(tmp_path, LLAMA)
    disk = config(folder, kv_disk=f"{tmp_path / 'kv'}:100MB")
    with tiered(disk) as core:
        expected = complete(core, [request("a", prompt(1, 300))])
    delay(monkeypatch, 0.2)
    with tiered(disk) as core:
        core.add_request(request("a", prompt(1, 300)))
        assert not core.step()  # set aside, and nothing else runs
        assert tier(core).aside == core.stats().waiting == 1
        (update,) = core.abort(["a"])
        assert update.finish_reason is FinishReason.ABORT
        assert complete(core, [request("a", prompt(1, 300))]) == expected
        assert tier(core).aside == 0


def test_others_run_while_blocks_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = folder_of(tmp_path, LLAMA)
    disk = config(folder, kv_disk=f"{tmp_path / 'kv'}:100MB")
    with tiered(disk) as core:
        expected = complete(core, [request("a", prompt(1, 300))])
    delay(monkeypatch, 0.3)
    with tiered(disk) as core:
        core.add_request(request("a", prompt(1, 300)))
        core.add_request(request("b", prompt(2, 40), max_tokens=3))
        updates = iter_steps(core)
        ends = [u.request_id for u in updates if u.finish_reason is not None]
        assert ends == ["b", "a"]
        got = [token for u in updates if u.request_id == "a" for token in u.token_ids]
        assert got == [token for token, _ in expected["a", 0]]
        assert tier(core).restored_tokens == 288


def test_a_disk_that_is_too_slow_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folder_of(tmp_path, LLAMA)
    disk = config(folder, kv_disk=f"{tmp_path / 'kv'}:100MB", kv_cache_bytes=SMALL)
    prompts = [prompt(seed, 200) for seed in range(8)]
    with tiered(disk) as core:
        expected = []
        for each in prompts:
            expected.append(complete(core, [request("a", each)]))
            settle(core)
        delay(monkeypatch, 1.0)
        monkeypatch.setattr(ReadingCosts, "patience_s", lambda *args: 0.02)
        assert [complete(core, [request("a", each)]) for each in prompts[:3]] == expected[:3]
        assert tier(core).given_up == 3
        assert tier(core).restored_tokens == 0
        monkeypatch.setattr(ReadingCosts, "worth", lambda *args: False)
        assert [complete(core, [request("a", each)]) for each in prompts[3:]] == expected[3:]
        assert tier(core).declined == 5


def test_of_many_that_are_not_worth_it_one_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So what was slow for a while is measured again."""
    folder = folder_of(tmp_path, LLAMA)
    prompts = [prompt(each, 100) for each in range(4)]
    with tiered(config(folder, kv_disk=f"{tmp_path / 'kv'}:100MB")) as core:
        expected = [complete(core, [request("a", each)]) for each in prompts]
        settle(core)
    monkeypatch.setattr(ReadingCosts, "worth", lambda *args: False)
    monkeypatch.setattr(restoring, "MOST_DECLINED", 3)
    with tiered(config(folder, kv_disk=f"{tmp_path / 'kv'}:100MB")) as core:
        assert [complete(core, [request("a", each)]) for each in prompts] == expected
        assert (tier(core).fetches, tier(core).declined) == (1, 3)
        assert tier(core).restored_tokens == 96


def test_the_next_engine_begins_with_what_was_measured(tmp_path: Path) -> None:
    asked = config(folder_of(tmp_path, LLAMA), kv_disk=f"{tmp_path / 'kv'}:100MB")
    with tiered(asked) as core:
        assert not costs_of(core).rate.known
        complete(core, [request("a", prompt(1, 300))])
        settle(core)
        rate = costs_of(core).rate.measured
        assert rate is not None
        assert not costs_of(core).bandwidths[-1].known
    with tiered(asked) as core:
        assert costs_of(core).rate.measured == rate
        complete(core, [request("a", prompt(1, 300))])
        bandwidth = costs_of(core).bandwidths[-1].measured
        assert bandwidth is not None
    (path,) = tmp_path.rglob(RATES)
    with tiered(asked) as core:
        assert costs_of(core).bandwidths[-1].measured == bandwidth
        path.write_bytes(path.read_bytes()[:-3])
        shutil.copy(path, tmp_path / "damaged")
    shutil.copy(tmp_path / "damaged", path)
    with tiered(asked) as core:
        assert not costs_of(core).bandwidths[-1].known
        complete(core, [request("a", prompt(1, 300))])


def costs_of(core: EngineCore) -> ReadingCosts:
    assert core._tiers is not None
    return core._tiers._costs


def test_a_full_disk_keeps_nothing_and_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    folder = folder_of(tmp_path, LLAMA)
    monkeypatch.setattr(os, "posix_fallocate", full)
    with tiered(config(folder, kv_disk=f"{tmp_path / 'kv'}:100MB")) as core:
        expected = complete(core, [request("a", prompt(1, 300))])
        assert complete(core, [request("a", prompt(1, 300))]) == expected
    told = [record.message for record in caplog.records if record.name == "penstock.kvstore"]
    assert len(told) == 1
    assert "No space left on device" in told[0]
    assert not segments(tmp_path)


def test_the_end_of_an_engine_does_not_wait_for_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes nothing for a minute, and what waits for it is lost."""

    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def waited(seconds: float) -> None:
        raise AssertionError("it waits")

    monkeypatch.setattr(os, "posix_fallocate", full)
    folder = folder_of(tmp_path, LLAMA)
    with tiered(config(folder, kv_disk=f"{tmp_path / 'kv'}:100MB")) as core:
        complete(core, [request("a", prompt(1, 300))])
        settle_failed(core)
        complete(core, [request("b", prompt(2, 300))])
        assert tier(core).unwritten_bytes
        monkeypatch.setattr(tiers, "time", SimpleNamespace(sleep=waited))


def settle_failed(core: EngineCore) -> None:
    """Wait until a write has failed, and nothing else is to be written."""
    assert core._tiers is not None
    (store,) = core._tiers._stores
    end = time.monotonic() + 60
    while not tier(core).failures or store.stats().unwritten_bytes:
        assert time.monotonic() < end, "nothing fails"
        time.sleep(0.005)


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


def test_a_disk_with_less_room_than_the_size_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    allocate = os.posix_fallocate

    def cramped(fd: int, at: int, length: int) -> None:
        if len(segments(tmp_path)) > 1:  # beside the one that is made
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        allocate(fd, at, length)

    folder = folder_of(tmp_path, LLAMA)
    monkeypatch.setattr(os, "posix_fallocate", cramped)
    with tiered(config(folder, kv_disk=f"{tmp_path / 'kv'}:1MB")) as core:
        for each in range(20):
            complete(core, [request("a", prompt(each, 300))])
            settle(core)
        assert tier(core).evicted_blocks
        assert not tier(core).failures
    told = [record.message for record in caplog.records if record.name == "penstock.kvstore"]
    assert len(told) == 1
    assert "the disk is full before" in told[0]


def test_a_directory_that_cannot_be_used_is_told_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = folder_of(tmp_path, LLAMA)
    (tmp_path / "file").write_text("")
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "link").symlink_to("nowhere")
    for place, why in (
        ("file/kv", "Not a directory"),
        ("file", "file is no folder, but a file"),
        ("link", "link is no folder, but a link to nowhere, where none is"),
        ("link/kv", "link is no folder, but a link to nowhere, where none is"),
        ("open", "others can write into"),
    ):
        with tiered(config(folder, kv_disk=f"{tmp_path / place}:100MB")) as core:
            complete(core, [request("a", prompt(1, 100))])
            assert core.stats().tier is None
        assert why in caplog.records[-1].message


def test_a_directory_that_is_removed_is_told_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = folder_of(tmp_path, LLAMA)
    with tiered(config(folder, kv_disk=f"{tmp_path / 'kv'}:100MB")) as core:
        expected = complete(core, [request("a", prompt(1, 300))])
        settle(core)
        shutil.rmtree(tmp_path / "kv")
        end = time.monotonic() + 60
        while tier(core).blocks and time.monotonic() < end:
            time.sleep(0.05)
        assert complete(core, [request("a", prompt(1, 300))]) == expected
        complete(core, [request("b", prompt(2, 300))])
    told = [record.message for record in caplog.records if record.name == "penstock.kvstore"]
    assert len(told) == 1
    assert "was removed" in told[0]


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (
            edited("mamba2", num_hidden_layers=2, time_step_limit=[0.0, 1e9]),
            {},
            "keep a state .* start without --kv-disk",
        ),
        (LLAMA, {"enable_prefix_caching": False}, "leave one of both out"),
        (LLAMA, {"tensor_parallel": 2, "threads": 2}, "several ranks"),
        (LLAMA, {"kv_disk": "/tmp"}, "a folder and a size"),
        (LLAMA, {"kv_disk": "/tmp:lots"}, "write it as 100GB"),
    ],
    ids=["states", "no prefixes", "ranks", "no size", "odd size"],
)
def test_what_cannot_be_had_is_refused(
    model: dict[str, Any], options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    given: dict[str, Any] = {"kv_disk": f"{tmp_path}/kv:1GB", "kv_cache_bytes": None, **options}
    with pytest.raises(ConfigError, match=message):
        plan_engine(config(folder_of(tmp_path, model), **given))


def test_a_size_of_less_than_a_block_is_refused(tmp_path: Path) -> None:
    asked: EngineConfig = config(folder_of(tmp_path, LLAMA), kv_disk=f"{tmp_path}/kv:10KB")
    with pytest.raises(ConfigError, match="takes 12,288 bytes"), tiered(asked):
        pass


def delay(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Let every read take longer."""
    read = Segment.read

    def slowly(self: Segment, *args: Any) -> Any:
        time.sleep(seconds)
        return read(self, *args)

    monkeypatch.setattr(Segment, "read", slowly)
