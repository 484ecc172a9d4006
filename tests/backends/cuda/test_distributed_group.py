"""Groups by torch.distributed, of ranks that are threads here: of Gloo, as NCCL is used too."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="triton is not installed")

from support.ranks import in_ranks  # noqa: E402

from penstock.backends.cuda.distributed_group import DistributedGroup, join  # noqa: E402
from penstock.errors import ConfigError, EngineDeadError  # noqa: E402
from penstock.interface.collective import ThreadRank  # noqa: E402

CPU = torch.device("cpu")


def joined(rank: ThreadRank) -> DistributedGroup:
    return join(rank, CPU, (9, 0))


def part_of(rank: int) -> Any:
    return torch.arange(rank, rank + 5, dtype=torch.uint8)


def test_all_parts_come_in_the_order_of_ranks() -> None:
    def work(rank: ThreadRank) -> tuple[Any, Any, Any]:
        group = joined(rank)
        everything = torch.zeros(15, dtype=torch.uint8)
        group.all_gather(everything, part_of(rank.rank))
        first = torch.zeros(15, dtype=torch.uint8) if rank.rank == 0 else None
        group.gather_to_first(first, part_of(rank.rank))
        rows = group.same_rows((2 * rank.rank, 7, 48)[: rank.rank + 1])
        group.close()
        group.close()
        return everything, first, rows

    expected = torch.cat([part_of(rank) for rank in range(3)])
    for rank, (everything, first, rows) in enumerate(in_ranks(3, work)):
        assert torch.equal(everything, expected)
        assert rank > 0 if first is None else torch.equal(first, expected)
        assert rows == (0, 2, 4, 7, 48)


def test_giving_up_ends_whoever_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)

    met, failed = threading.Barrier(2), threading.Event()

    def work(rank: ThreadRank) -> None:
        group = joined(rank)
        met.wait(60)
        everything = torch.zeros(10, dtype=torch.uint8)
        if rank.rank == 0:
            with pytest.raises(RuntimeError):
                group.all_gather(everything, part_of(0))
            assert failed.wait(60)
        else:
            time.sleep(0.1)  # the other waits by now
            rank.fail()
            failed.set()
        with pytest.raises(RuntimeError, match="has left the group, or waits for ranks"):
            group.all_gather(everything, part_of(rank.rank))
        group.close()

    in_ranks(2, work)
    assert list(tmp_path.iterdir()) == []


def test_gpus_of_two_kinds_are_refused() -> None:
    def work(rank: ThreadRank) -> None:
        with pytest.raises(ConfigError, match=r"rank 1 has compute capability 8.9, .* rank 0 9.0"):
            join(rank, CPU, (8, 9) if rank.rank == 1 else (9, 0))

    in_ranks(2, work)


def test_a_communicator_that_cannot_be_made_is_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise RuntimeError("no route\nand a trace")

    monkeypatch.setattr("penstock.backends.cuda.distributed_group._communicator", refuse)

    def work(rank: ThreadRank) -> None:
        with pytest.raises(EngineDeadError, match=r"cannot exchange what they compute: no route; "):
            joined(rank)

    in_ranks(2, work)
