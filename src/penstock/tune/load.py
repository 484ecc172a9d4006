"""The load that is tuned for: a trace, and how it is offered."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from penstock.bench.load.arrivals import Arrivals, parse_arrivals
from penstock.bench.load.load import Load
from penstock.bench.load.turn import Conversation, Piece
from penstock.bench.load.workload import RecordedWorkload
from penstock.profile import Lengths, Workload
from penstock.service_level import Limit
from penstock.simulate.fleet import Offered


@dataclass(frozen=True)
class TraceLoad:
    """Conversations of a trace, at its times or at a rate of their own.

    It is offered in simulations (:meth:`offered`) and to servers (``load`` and :meth:`arrivals` are
    those of a :class:`~penstock.bench.load.campaign.LoadPlan`) in the same way.
    """

    workload: RecordedWorkload
    limits: tuple[Limit, ...]
    rate: float | None = None
    """Conversations a second; None: the trace's times."""
    kind: str = "poisson"
    """The kind of arrivals at a rate."""
    concurrency: int | None = None
    seed: int = 0
    speed: float | None = None
    """How many times as fast as the trace was recorded; None: at a rate."""

    @property
    def load(self) -> Load:
        return Load(self.rate, self.concurrency)

    def arrivals(self, rate: float | None) -> Arrivals | None:
        """Raises ConfigError for an unknown kind."""
        return None if rate is None else parse_arrivals(self.kind, rate)

    def offered(self, conversations: int | None, duration_s: float | None) -> Offered:
        return Offered(
            self.arrivals(self.rate), self.concurrency, conversations, duration_s, self.seed
        )

    def summary(self) -> Workload:
        """The load in figures. Lengths are those asked for, without a chat template."""
        prompts, outputs = [], []
        shared = 0
        seen: set[int] = set()
        for pieces, output in _turns(self.workload.recorded):
            prompts.append(sum(piece.tokens for piece in pieces))
            outputs.append(output)
            before = 0
            for piece in pieces:
                before = hash((before, piece.key, piece.tokens))
                shared += piece.tokens if before in seen else 0
                seen.add(before)
        recorded = self.workload.recorded
        if self.rate is not None:
            per_s: float | None = self.rate * len(prompts) / len(recorded)
        else:
            last = max(each.at_s or 0.0 for each in recorded)
            per_s = len(prompts) / last if last > 0 else None
        about = dict(self.workload.about)
        return Workload(
            source=str(about.get("file", self.workload.name)),
            requests=len(prompts),
            per_s=per_s,
            concurrency=self.concurrency,
            input_tokens=_lengths(prompts),
            output_tokens=_lengths(outputs),
            shared=shared / max(sum(prompts), 1),
        )


def first_part(conversations: int, part: float) -> int:
    """How many conversations such a part of a load has; a few at least."""
    return min(conversations, max(math.ceil(conversations * part), 20))


def _turns(conversations: Sequence[Conversation]) -> Iterator[tuple[tuple[Piece, ...], int]]:
    """The prompt of every turn, with all that was said before it, and the tokens of its answer."""
    for number, conversation in enumerate(conversations):
        said: list[tuple[Piece, ...]] = []
        for place, turn in enumerate(conversation.turns):
            before = () if turn.continues is None else said[turn.continues]
            own = tuple(part for part in turn.content if isinstance(part, Piece))
            prompt = (*before, *own)
            output = turn.output_tokens or 1
            said.append((*prompt, Piece((-1, number, place), output)))
            yield prompt, output


def _lengths(tokens: Sequence[int]) -> Lengths:
    values = np.array(tokens or [0], np.float64)
    p50, p90, p99 = np.percentile(values, [50, 90, 99]).tolist()
    return Lengths(mean=float(values.mean()), p50=p50, p90=p90, p99=p99, longest=int(values.max()))


def parts(conversations: int, shares: Sequence[float]) -> list[int]:
    """The first conversations of a load, in growing parts; the last is all of it."""
    found = [first_part(conversations, share) for share in shares]
    return [each for each, _ in itertools.groupby([*found, conversations])]
