"""A replica whose prompts are computed apart: a decode engine, which its clients ask, and prefill
engines, each on a clock of its own.

What they do is decided by the cores of both roles themselves (``engine/handover/``), which are put
around simulated engines: when a prompt is handed over, by the rule and by what was measured; which
blocks go, and when; what is computed here after all. Here is what stands in the place of clocks,
sockets and memory (``handed.py``), and the order of it all: the engine whose next step begins first
goes on first, so nothing comes that should have been there before.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable
from heapq import heappop

from penstock.cache.changes import CacheChanges
from penstock.cache.prefix import Key
from penstock.engine.cached_blocks import CachedBlocks
from penstock.engine.handover.decode import DecodeCore
from penstock.engine.handover.peer import Over, Piece
from penstock.engine.handover.prefill import PrefillCore
from penstock.errors import ConfigError
from penstock.handover_config import DecodeRole
from penstock.interface.messages import (
    EngineRequest,
    EngineStats,
    HandoverStats,
    SequenceUpdate,
)
from penstock.simulate.asked import TOKEN, Asked
from penstock.simulate.engine import Engine, Work
from penstock.simulate.front_end import NEVER, Answer
from penstock.simulate.handed import Memory, Peer, TimedInbox, Visitor, Visitors
from penstock.simulate.replica import Replica
from penstock.simulate.setup import Setup


class ApartReplica(Replica):
    """Serves what is offered to it, as a replica of one engine does."""

    def __init__(self, setup: Setup, number: int = 0, seed: int = 0) -> None:
        apart = setup.apart
        assert apart is not None
        super().__init__(setup, number, seed)
        self._prompts = _Prompts(setup.limits.block_size)
        self.engine = Engine(
            setup,
            self,
            lambda: any(p.engine.has_work for p in self._prefills),
            seed=(seed, number),
        )
        self._prefills = [
            _Prefill(setup, self._prompts, self._others, seed=(seed, number, each))
            for each in range(apart.engines)
        ]
        now = _clock(self.engine)
        self._arrived: TimedInbox[Piece | Over] = TimedInbox(now)
        self._peers = [
            Peer(n, each.visitors, apart.way, now, setup.limits.block_size)
            for n, each in enumerate(self._prefills)
        ]
        self._decode = DecodeCore(
            SimulatedCore(self.engine, self._prompts),
            _blocks(self.engine, apart.group_bytes),
            DecodeRole(
                prefill=tuple(peer.address for peer in self._peers),
                least_tokens=apart.least_tokens,
                max_wait_s=apart.max_wait_s,
            ),
            self._arrived,
            self._peers,
            now,
            self._prompts.chain,
        )

    @property
    def works(self) -> tuple[Work, ...]:
        return (self.engine.work, *(each.engine.work for each in self._prefills))

    @property
    def handovers(self) -> HandoverStats:
        """What came of the prompts that were handed over, and of those that were not."""
        found = self._decode.stats().handover
        assert found is not None
        return found

    @property
    def next_at(self) -> float:
        return min(self._next_at, *(each.next_at for each in self._prefills))

    def advance(self, until: float, one_end: bool = False) -> None:
        while True:
            first = min(self._prefills, key=lambda each: each.next_at)
            own = self._next_at
            if min(own, first.next_at) >= until:
                return
            if first.next_at < own:
                first.step()
            elif self._step(own) and one_end:
                return

    @property
    def _next_at(self) -> float:
        """When the decode engine's loop has something to do."""
        if self._decode.has_work:
            return self.engine.at
        comes = min(peer.next_at for peer in self._peers)
        asked = self._inbox[0][0] if self._inbox else NEVER
        return max(self.engine.at, min(comes, asked, self._arrived.next_at))

    def _step(self, at: float) -> bool:
        """Run a round of the decode engine's loop; returns whether a request has ended."""
        engine, before = self.engine, len(self.ended)
        if not engine.has_work:
            engine.idle_until(at)
        for peer in self._peers:
            peer.receive(self._arrived)
        while self._inbox and self._inbox[0][0] <= engine.at:
            answer = heappop(self._inbox)[2]
            self._decode.add_request(self._prompts.request(answer, engine))
        if self._decode.has_work:
            self._decode.step()
        return len(self.ended) > before

    def _others(self, prefill: _Prefill) -> bool:
        """Whether another engine of the machine computes, beside one for prompts."""
        return self.engine.has_work or any(
            each.engine.has_work for each in self._prefills if each is not prefill
        )


class _Prefill:
    """A prefill engine, whose own server is asked nothing."""

    def __init__(
        self,
        setup: Setup,
        prompts: _Prompts,
        others: Callable[[_Prefill], bool],
        seed: tuple[int, ...],
    ) -> None:
        apart = setup.apart
        assert apart is not None
        self.engine = Engine(setup, self, lambda: others(self), seed=seed)
        now = _clock(self.engine)
        self.visitors = Visitors(apart.way, now)
        core: PrefillCore[Visitor] = PrefillCore(
            SimulatedCore(self.engine, prompts),
            _blocks(self.engine, apart.group_bytes),
            self.visitors,
            now,
            prompts.chain,
        )
        self._core = core

    @property
    def next_at(self) -> float:
        """When its loop has something to do."""
        engine, visitor = self.engine, self.visitors.visitor
        if self._core.has_work:
            return engine.at
        room = NEVER if visitor.has_room else visitor.room_at
        return max(engine.at, min(self.visitors.inbox.next_at, room))

    def step(self) -> None:
        if not self.engine.has_work:
            self.engine.idle_until(self.next_at)
        if self._core.has_work:
            self._core.step()

    def brought(self, at: float, answers: list[Answer], ended: list[Answer]) -> None:
        """The one token of a prompt that is computed for another engine is for nobody."""

    def brought_steadily(self, ends: list[float], answers: list[Answer]) -> None:
        """There are no such steps: each prompt has one token."""


class SimulatedCore:
    """A simulated engine as the core that a role drives."""

    def __init__(self, engine: Engine, prompts: _Prompts) -> None:
        self._engine = engine
        self._prompts = prompts

    @property
    def has_work(self) -> bool:
        return self._engine.has_work

    @property
    def tokens_computed(self) -> int:
        return self._engine.scheduler.tokens_computed

    @property
    def num_running(self) -> int:
        return len(self._engine.scheduler.running)

    def check(self, request: EngineRequest) -> None:
        self._engine.scheduler.check(len(request.prompt_token_ids), request.params)

    def holds(self, request_id: str) -> bool:
        return self._engine.scheduler.holds(request_id)

    def add_request(self, request: EngineRequest) -> None:
        self.check(request)
        self._prompts.add_to(self._engine, request)

    def abort(self, request_ids: Iterable[str], index: int | None = None) -> list[SequenceUpdate]:
        for request_id in request_ids:
            self._engine.abort(request_id)
        return []

    def step(self) -> list[SequenceUpdate]:
        return self._engine.one()

    def stats(self) -> EngineStats:
        return self._engine.scheduler.stats()

    def cache_changes(self, position: int | None) -> CacheChanges:
        return self._engine.scheduler.cache.changes_after(position)

    def reset_prefix_cache(self) -> None:
        self._engine.scheduler.cache.reset()

    def load_adapter(self, path: str) -> str:
        raise ConfigError("adapters are not simulated")

    def drop_adapter(self, digest: str) -> None:
        """There are none."""

    def check_integrity(self) -> None:
        self._engine.scheduler.check_integrity()

    def close(self) -> None:
        """There is nothing to end."""


class _Prompts:
    """What is asked, by names: these are the salts of requests, since all tokens are the same."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._answers: dict[str, Answer] = {}

    def request(self, answer: Answer, engine: Engine) -> EngineRequest:
        """The request for an answer."""
        asked = answer.asked
        self._answers[asked.name] = answer
        return EngineRequest(
            request_id=asked.name,
            prompt_token_ids=[TOKEN] * asked.prompt,
            params=engine.params(asked.output),
            cache_salt=asked.name,
        )

    def chain(self, salt: str, token_ids: array[int], count: int, block_size: int) -> list[Key]:
        """The keys of a prompt's blocks."""
        return self._answers[salt].asked.keys(block_size)[:count]

    def add_to(self, engine: Engine, request: EngineRequest) -> None:
        """Have an engine serve a request, which may be for the first blocks of a prompt alone."""
        answer = self._answers[request.cache_salt]
        if request.request_id == answer.asked.name:
            engine.add(answer)
            return
        tokens, asked = len(request.prompt_token_ids), answer.asked
        part = Asked(
            name=request.request_id,
            conversation=asked.conversation,
            turn=asked.turn,
            pieces=asked.pieces,
            prompt=tokens,
            output=1,
            scheduled_s=engine.at,
            sent_s=engine.at,
        )
        keys = asked.keys(self._block_size)[: tokens // self._block_size]
        engine.add_sequence(part.sequence_with(engine.params(1), keys), Answer(part))


def _clock(engine: Engine) -> Callable[[], float]:
    return lambda: engine.at


def _blocks(engine: Engine, group_bytes: tuple[int, ...]) -> CachedBlocks:
    return CachedBlocks(engine.scheduler.cache, Memory(group_bytes, engine.spend))
