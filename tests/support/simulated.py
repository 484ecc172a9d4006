"""Setups of simulations whose times can be worked out by hand, and loads for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from penstock.bench.load.turn import Conversation, Piece, Turn
from penstock.cache.geometry import Window
from penstock.length_limits import LengthLimits
from penstock.simulate.clock import StepShape
from penstock.simulate.fleet import Fleet, Offered
from penstock.simulate.front_end import FrontTimes
from penstock.simulate.setup import Apart, ReplicaLimits, Setup
from penstock.simulate.stages import Stages

AT_ONCE = FrontTimes(request=0.0, prompt_token=0.0, answer=0.0, chunk=0.0, pause=0.0)
"""A front end that takes no time."""


@dataclass(frozen=True)
class EvenClock:
    """A time for each step, each of its tokens and each token that is read."""

    step: float = 1.0
    token: float = 0.0
    read: float = 0.0
    windows: tuple[Window | None, ...] = (None,)
    after: float = 0.0
    """The time for each token that the step before had more."""

    def seconds(self, shape: StepShape) -> float:
        return self.step + self.token * shape.tokens + self.read * sum(shape.reads)

    def behind(self, before: int, tokens: int) -> float:
        return self.after * max(before - tokens, 0)

    def decoding(self, sequences: int, reads: Sequence[Sequence[float]]) -> list[float]:
        fixed = self.step + self.token * sequences
        return [fixed + self.read * sum(each) for each in zip(*reads, strict=True)]


def setup_of(
    clock: EvenClock | None = None,
    front: FrontTimes = AT_ONCE,
    seqs: int = 4,
    budget: int = 16,
    blocks: int = 64,
    context: int = 256,
    replicas: int = 1,
    routing: str = "round-robin",
    block_size: int = 4,
    max_waiting: int = 1024,
    windows: tuple[Window | None, ...] = (None,),
    stages: Stages | None = None,
    apart: Apart | None = None,
) -> Setup:
    """``stages`` take the place of ``clock``."""
    limits = ReplicaLimits(
        seqs,
        budget,
        LengthLimits(context),
        blocks,
        windows=windows,
        block_size=block_size,
        max_waiting=max_waiting,
    )
    stages = stages or Stages.one(clock or EvenClock())
    return Setup("tried", limits, stages, front, replicas, routing, apart)


def single(
    index: int, at: float | None, prompt: int | Sequence[Piece], output: int
) -> Conversation:
    """A conversation of one turn."""
    content = (Piece((9, index), prompt),) if isinstance(prompt, int) else tuple(prompt)
    return Conversation(str(index), (Turn(content, output),), at)


def played(
    setup: Setup, conversations: Sequence[Conversation], offered: Offered | None = None
) -> Fleet:
    """A fleet that has served all of them, with its books looked through."""
    fleet = Fleet(setup, offered or Offered(None))
    source: Iterator[Conversation] = iter(conversations)
    fleet.run(source)
    for replica in fleet.replicas:
        replica.scheduler.check_integrity()
        assert not replica.scheduler.has_work
        assert replica.scheduler.cache.num_used_blocks == 0
        assert replica.front.open == 0
    return fleet
