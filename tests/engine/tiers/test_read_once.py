"""What several waiting sequences begin with is read for one of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.bitwise import prompt
from support.cached_kinds import KINDS
from support.handed import LLAMA, Answers, complete, config, folder_of, plain, request
from support.late_device import late
from support.needs import needs_native
from support.tiered import all_updates, flip_block, settle, slow_reads, tier, tiered

from penstock.config import EngineConfig
from penstock.engine.tiers.rule import ReadingCosts
from penstock.interface.messages import EngineRequest, SequenceUpdate

pytestmark = [needs_native, pytest.mark.usefixtures("always_read")]

BLOCK = 12288
"""Bytes of a block of LLAMA."""
DOCUMENT = prompt(1, 200)
"""6 whole blocks, and some tokens."""


def questions(count: int = 5, length: int = 40) -> list[EngineRequest]:
    """Requests that begin with one document."""
    return [request(f"{n}", DOCUMENT + prompt(10 + n, length)) for n in range(count)]


def answers_of_one_without(options: EngineConfig, asked: list[EngineRequest]) -> Answers:
    alone = plain(options)
    try:
        return complete(alone, asked)
    finally:
        alone.close()


def saved(disk: EngineConfig, asked: list[EngineRequest]) -> None:
    """Let the disk have the blocks of these prompts."""
    with tiered(disk) as core:
        complete(core, asked)
        settle(core)


def kept(tmp_path: Path) -> tuple[EngineConfig, list[EngineRequest], Answers]:
    """An engine's options, on whose disk the document is; requests that begin with it; and what an
    engine without a disk answers."""
    folder = folder_of(tmp_path, LLAMA)
    disk = config(folder, kv_disk=f"{tmp_path / 'kv'}:100MB")
    saved(disk, [request("d", DOCUMENT)])
    return disk, questions(), answers_of_one_without(config(folder), questions())


def tokens(answers: Answers) -> dict[str, list[int]]:
    """Those of each request."""
    return {name: [token for token, _ in answer] for (name, _), answer in answers.items()}


def tokens_of(updates: list[SequenceUpdate]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for update in updates:
        if update.token_ids:
            found.setdefault(update.request_id, []).extend(update.token_ids)
    return found


@pytest.mark.parametrize("kind", ["bfloat16", "int8", "int4", "windows", "latents", "drafts"])
def test_a_document_is_read_once(kind: str, tmp_path: Path) -> None:
    model, options = KINDS[kind]
    folder = folder_of(tmp_path, model)
    expected = answers_of_one_without(config(folder, **options), questions())
    disk = config(folder, kv_disk=f"{tmp_path / 'kv'}:100MB", **options)
    saved(disk, [request("d", DOCUMENT + prompt(9, 1))])
    read = []
    for count in (1, 5):
        with tiered(disk) as core:
            for each in questions(count):
                core.add_request(each)
            updates = all_updates(core)
            read.append(tier(core).read_bytes)
            assert tier(core).fetches == 1
        assert tokens_of(updates) == {str(n): tokens(expected)[str(n)] for n in range(count)}
        cached = {u.request_id: u.num_cached_tokens for u in updates if u.num_cached_tokens}
        assert cached == {f"{n}": 192 for n in range(count)}
        restored = {u.request_id: u.num_restored_tokens for u in updates if u.num_restored_tokens}
        assert restored == {"0": 192}  # the one that it was read for
        # Each run's questions are blocks of their own, which the next must not find.
        break_off(tmp_path)
        saved(disk, [request("d", DOCUMENT + prompt(9, 1))])
    assert read[0] == read[1] > 0


def break_off(root: Path) -> None:
    """Remove all that was kept."""
    for path in root.rglob("*.kvseg"):
        path.unlink()


def test_what_each_has_besides_is_read_too(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, LLAMA)
    asked = questions(length=100)
    expected = answers_of_one_without(config(folder), asked)
    disk = config(folder, kv_disk=f"{tmp_path / 'kv'}:100MB")
    saved(disk, asked)
    with tiered(disk) as core:
        assert complete(core, asked) == expected
        found = tier(core)
        # Of 300 tokens each has 9 whole blocks, 6 of which are everybody's.
        assert found.restored_tokens == (6 + 5 * 3) * 32
        assert found.read_bytes == (6 + 5 * 3) * BLOCK
        assert found.fetches == 5
        assert core.stats().prefix_hits == 5 * 9 * 32


def test_if_the_first_ends_another_one_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, asked, expected = kept(tmp_path)
    slow_reads(monkeypatch, 0.1)
    with tiered(disk) as core:
        for each in asked:
            core.add_request(each)
        core.step()
        assert tier(core).aside == len(asked)
        assert tier(core).fetches == 1
        core.abort(["0"])
        updates = all_updates(core)
        got = tokens_of(updates)
        assert got == {name: t for name, t in tokens(expected).items() if name != "0"}
        assert tier(core).fetches == 2
        assert tier(core).aside == 0
        assert tier(core).restored_tokens == 192


def test_nobody_waits_longer_than_each_alone_would(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that does not answer is given up once by all, not by one after the other."""
    disk, asked, expected = kept(tmp_path)
    slow_reads(monkeypatch, 1.0)
    monkeypatch.setattr(ReadingCosts, "patience_s", lambda *args: 0.05)
    with tiered(disk) as core:
        assert complete(core, asked) == expected
        assert tier(core).given_up == tier(core).fetches == 1
        assert tier(core).restored_tokens == 0


def test_one_that_is_let_in_first_makes_what_it_waits_for_hurry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is read for a request far behind is wanted by one that goes before it."""
    disk, asked, expected = kept(tmp_path)
    with tiered(disk) as core:
        for n, each in enumerate(asked):
            core.add_request(msgspec.structs.replace(each, priority=-n))
        assert tokens_of(all_updates(core)) == tokens(expected)
        assert tier(core).restored_tokens == 192


def test_damage_is_noticed_for_all(tmp_path: Path) -> None:
    disk, asked, expected = kept(tmp_path)
    flip_block(tmp_path, 3)
    with tiered(disk) as core:
        assert complete(core, asked) == expected
        assert tier(core).damaged_blocks == 1
        assert tier(core).restored_tokens < 192


@pytest.mark.parametrize("haste", [0.02, 0.5])
def test_copies_that_are_late_are_waited_for(haste: float, tmp_path: Path) -> None:
    folder = folder_of(tmp_path, LLAMA)
    asked = questions()
    expected = answers_of_one_without(config(folder), asked)
    options: dict[str, Any] = {"kv_disk": f"{tmp_path / 'kv'}:100MB"}
    for seed in range(3):
        with late(config(folder, **options), 0, seed, haste) as core:
            assert complete(core, asked) == expected
            settle(core)
        with late(config(folder, **options), 0, seed + 10, haste) as core:
            assert complete(core, asked) == expected
            assert tier(core).restored_tokens > 0
            assert tier(core).read_bytes <= tier(core).blocks * BLOCK
        break_off(tmp_path)
