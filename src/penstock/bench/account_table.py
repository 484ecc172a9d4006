"""Prints where the time of a step goes."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.bench.op_account import OpLine, StepAccount

_COLUMNS = ("calls", "ms", "least", "share", "waiting", "MB", "Gop", "floor ms", "of floor")


def account_table(name: str, account: StepAccount) -> str:
    """A table for people; ``least`` are the milliseconds of the step in which the ops took least,
    and ``of floor`` says how much of the time the floor makes up."""
    rows: list[tuple[str, tuple[str, ...]]] = [(f"{name}, {account.tokens:,.0f} tokens", _COLUMNS)]
    rows += [(line.op, tuple(_cells(line))) for line in account.ops]
    total = account.seconds
    for part, seconds in (
        ("executor outside ops", account.call_s),
        ("sampling", account.sampling_s),
        ("host", account.host_s),
    ):
        rows.append((part, ("", _ms(seconds), "", f"{seconds / total:.1%}")))
    whole = ("", _ms(total), "", "100.0%", *[""] * 3, *_floor(account.floor_s, total))
    rows.append(("together", whole))
    wide = max(len(title) for title, _ in rows)
    return "\n".join(
        f"{title:<{wide}}" + "".join(f"{cell:>10}" for cell in cells) for title, cells in rows
    )


def _cells(line: OpLine) -> Iterator[str]:
    yield str(line.count)
    yield _ms(line.seconds)
    yield _ms(line.least_s)
    yield f"{line.share:.1%}"
    yield f"{line.waiting_s / line.seconds:.1%}" if line.seconds else ""
    yield f"{line.bytes / 1e6:,.2f}" if line.bytes else ""
    yield f"{line.operations / 1e9:,.3f}" if line.operations else ""
    yield from _floor(line.floor_s, line.seconds)


def _floor(floor: float | None, seconds: float) -> tuple[str, str]:
    if not floor or not seconds:
        return "", ""
    return _ms(floor), f"{floor / seconds:.1%}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.3f}"
