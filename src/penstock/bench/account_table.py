"""Prints where the time of a step goes."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.bench.digits import digits, megabytes
from penstock.bench.op_account import OpLine, StepAccount

_COLUMNS = ("calls", "ms", "least", "share", "wait", "bound by", "floor", "reached")

LEGEND = """\
ms: of all calls, in the step (or prompt) of median time; least: where they took least; wait: part
of it, at the barrier behind the op; floor: ms that MB (weights, keys and values) take at the read
bandwidth, or Gop at the peak of their type, the longer of the two; reached: floor / ms"""
"""What the columns of :func:`account_table` are."""


def account_table(name: str, account: StepAccount) -> str:
    """A table for people of the step called ``name``, with the columns of :data:`LEGEND`."""
    title = f"{name}, {_counted(account.tokens, 'token')}"
    if account.steps > 1:
        title += f" in {account.steps} steps"
    rows: list[tuple[str, ...]] = [(title, *_COLUMNS)]
    rows += [(line.op, *_cells(line)) for line in account.ops]
    total = account.seconds
    for part, seconds in (
        ("executor outside ops", account.call_s),
        ("sampling", account.sampling_s),
        ("host", account.host_s),
    ):
        rows.append((part, "", _ms(seconds), "", f"{seconds / total:.1%}", "", "", "", ""))
    floor = _floor(account.floor_s, total)
    rows.append(("together", "", _ms(total), "", "100.0%", "", "", *floor))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(_aligned(row, widths) for row in rows)


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def _aligned(row: tuple[str, ...], widths: list[int]) -> str:
    """The first cell on the left, all others on the right, two spaces apart."""
    first, *others = (
        cell.ljust(width) if column == 0 else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(row, widths, strict=True))
    )
    return "  ".join([first, *others]).rstrip()


def _cells(line: OpLine) -> Iterator[str]:
    yield str(line.count)
    yield _ms(line.seconds)
    yield _ms(line.least_s)
    yield f"{line.share:.1%}"
    yield f"{line.waiting_s / line.seconds:.1%}" if line.seconds else ""
    if line.bound == "memory":
        yield megabytes(line.bytes)
    else:
        yield f"{digits(line.operations / 1e9, 3)} Gop" if line.bound == "compute" else ""
    yield from _floor(line.floor_s, line.seconds)


def _floor(floor: float | None, seconds: float) -> tuple[str, str]:
    if not floor or not seconds:
        return "", ""
    return _ms(floor), f"{floor / seconds:.1%}"


def _ms(seconds: float) -> str:
    return digits(seconds * 1e3)
