"""The figures that are compared, and where they come from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from penstock.bench.load.document import LoadedRun
from penstock.bench.load.figures import NAMES
from penstock.bench.load.goodput import good
from penstock.bench.load.outcome import STOPPED
from penstock.bench.load.record import RequestRecord
from penstock.errors import ConfigError
from penstock.service_level import Limit

_SLICES: Final = 10
_RATE: Final = "output_tokens_per_s"
_SHARES: Final = ("good_share", "failed_share")
_PAIRED: Final = 0.9
_PARTS: Final = ("mean", "p50", "p90", "p99")
_MORE_IS_BETTER: Final = (
    *(_RATE, "good_share", "output_tokens_per_s_per_user", "prefill_tokens_per_s_per_user"),
)
_COMPARED: Final = tuple(name for name in NAMES if name not in ("input_tokens", "output_tokens"))


@dataclass(frozen=True)
class Compared:
    """A figure, by its name: a rate, a share, or ``quantity.part``."""

    name: str

    @property
    def kind(self) -> Literal["rate", "share", "distribution"]:
        if self.name == _RATE:
            return "rate"
        return "share" if self.name in _SHARES else "distribution"

    @property
    def quantity(self) -> str:
        return self.name.partition(".")[0]

    @property
    def part(self) -> str:
        return self.name.partition(".")[2]

    @property
    def better(self) -> Literal["less", "more"]:
        return "more" if self.quantity in _MORE_IS_BETTER else "less"


DEFAULT: Final = tuple(
    map(
        Compared,
        (
            *(_RATE, "ttft.p50", "ttft.p99", "tpot.p50", "tpot.p99", "itl.p99"),
            *("e2el.p50", "e2el.p99", *_SHARES),
        ),
    )
)
"""Each further figure makes it harder for all of them to be told from noise."""


def parse_figures(text: str) -> tuple[Compared, ...]:
    """Names with commas between them. Raises ConfigError for one that there is none of."""
    found = []
    for name in dict.fromkeys(text.split(",")):
        figure = Compared(name)
        known = figure.quantity in _COMPARED and figure.part in _PARTS
        if figure.kind == "distribution" and not known:
            raise ConfigError(
                f"--figures {name!r}: there are {_RATE}, {', '.join(_SHARES)}, and mean, p50, p90 "
                f"and p99 of {', '.join(_COMPARED)}, such as ttft.p99"
            )
        found.append(figure)
    return tuple(found)


def values_of(runs: Sequence[LoadedRun], figure: Compared) -> list[float]:
    """The figure of each run that has it."""
    found = []
    for run in runs:
        value: float | None = None
        if figure.name == "failed_share":
            ended = run.whole.completed + run.whole.failed
            value = run.whole.failed / ended if ended else None
        elif figure.kind == "distribution":
            each = run.whole.distributions.get(figure.quantity)
            value = None if each is None else float(getattr(each.summary, figure.part))
        else:
            value = getattr(run.whole, figure.name)
        if value is not None:
            found.append(value)
    return found


def flags(runs: Sequence[LoadedRun], figure: Compared, limits: Sequence[Limit]) -> list[bool]:
    """Whether each request that ended counts for a share, in the order of sending."""
    ended = [record for run in runs for record in run.requests if record.error != STOPPED]
    if figure.name == "failed_share":
        return [not record.ok for record in ended]
    return [good(record, limits) for record in ended]


def slices(run: LoadedRun) -> list[float]:
    """Output tokens per second in equal slices of a run's steady part, or of all of it."""
    part = run.steady or run.whole
    edges = np.linspace(part.begin_s, part.end_s, _SLICES + 1)
    tokens = np.zeros(_SLICES)
    for record in run.requests:
        if record.gaps_us:
            times = record.sent_s + np.cumsum(record.gaps_us) / 1e6
            inside, _ = np.histogram(times, edges)
            tokens += inside * (record.tokens / len(times))
    length = part.end_s - part.begin_s
    return (tokens * (_SLICES / length)).tolist() if length > 0 else [0.0] * _SLICES


def same_requests(
    a: LoadedRun, b: LoadedRun
) -> tuple[list[RequestRecord], list[RequestRecord]] | None:
    """The answers that were asked for alike in both runs, one by one; None where these are runs of
    other requests, or one tenth has no partner."""
    ours = {(record.conversation, record.turn): record for record in a.requests}
    pairs = []
    for record in b.requests:
        other = ours.get((record.conversation, record.turn))
        if other is None or not record.ok or not other.ok:
            continue
        if _asked(record) != _asked(other):
            return None
        pairs.append((other, record))
    if len(pairs) < _PAIRED * max(len(a.requests), len(b.requests), 1):
        return None
    pairs.sort(key=lambda pair: pair[0].index)
    return [first for first, _ in pairs], [second for _, second in pairs]


def _asked(record: RequestRecord) -> tuple[int | None, int | None, str | None]:
    return record.input_tokens_asked, record.output_tokens_asked, record.pattern
