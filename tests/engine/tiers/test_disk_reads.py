"""What is read from disk, and when that is not waited for."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support.bitwise import prompt
from support.handed import LLAMA, Answers, complete, config, folder_of, request
from support.needs import needs_native
from support.tiered import all_updates, settle, slow_reads, tier, tiered

from penstock.config import EngineConfig
from penstock.engine.core import EngineCore
from penstock.engine.tiers import rule
from penstock.engine.tiers.rule import ReadingCosts
from penstock.interface.messages import FinishReason
from penstock.kvstore.rates import RATES

pytestmark = [needs_native, pytest.mark.usefixtures("always_read")]

SMALL = 32 * 12288
"""Bytes of a cache of 32 blocks of LLAMA, those of four of the prompts below."""


def test_a_sequence_may_end_while_its_blocks_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, expected = kept(tmp_path)
    slow_reads(monkeypatch, 0.2)
    with tiered(disk) as core:
        core.add_request(request("a", prompt(1, 300)))
        assert not core.step()  # set aside, and nothing else runs
        assert tier(core).aside == core.stats().waiting == 1
        (update,) = core.abort(["a"])
        assert update.finish_reason is FinishReason.ABORT
        assert complete(core, [request("a", prompt(1, 300))]) == expected
        assert tier(core).aside == 0


def test_others_run_while_blocks_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, expected = kept(tmp_path)
    slow_reads(monkeypatch, 0.3)
    with tiered(disk) as core:
        core.add_request(request("a", prompt(1, 300)))
        core.add_request(request("b", prompt(2, 40), max_tokens=3))
        updates = all_updates(core)
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
        slow_reads(monkeypatch, 1.0)
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
    monkeypatch.setattr(rule, "MOST_DECLINED", 3)
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


def kept(tmp_path: Path) -> tuple[EngineConfig, Answers]:
    """An engine's options, on whose disk a prompt is, and what was answered to it."""
    disk = config(folder_of(tmp_path, LLAMA), kv_disk=f"{tmp_path / 'kv'}:100MB")
    with tiered(disk) as core:
        return disk, complete(core, [request("a", prompt(1, 300))])
