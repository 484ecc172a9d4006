"""What the engine does, as a stream of events for whoever watches."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator

import msgspec

from penstock.errors import PenstockError
from penstock.interface.buckets import Buckets
from penstock.interface.messages import EngineStats
from penstock.server.metrics import Counts
from penstock.server.open_requests import OpenRequests
from penstock.server.sse import event
from penstock.server.supervisor import Supervisor

SAMPLE_S = 0.25
"""Seconds between two samples, at least: as often as a reader can tell them apart."""
PATIENCE_S = 1.0
"""Seconds that an engine in a long step may owe its figures before watchers are told so."""

_log = logging.getLogger(__name__)


class KvBlocks(msgspec.Struct, frozen=True, kw_only=True):
    """The blocks of the KV cache; those that are neither used nor cached hold nothing."""

    total: int
    used: int
    """Blocks that running requests hold."""
    cached: int
    """Free blocks whose content may be found by a prompt that begins alike."""


class StepTotals(msgspec.Struct, frozen=True, kw_only=True):
    """What all steps so far computed, in token positions."""

    steps: int
    seconds: float
    """Duration of all steps together."""
    prefill_tokens: int
    """Tokens of prompts, and of sequences that are computed again."""
    decode_tokens: int
    """Rows of sequences that needed one token for their next."""
    draft_tokens: int
    """Tokens that were drafted, and verified in the step."""


class DraftTotals(msgspec.Struct, frozen=True, kw_only=True):
    """What came of speculation so far."""

    verified: int
    """Draft tokens."""
    accepted: int
    """Draft tokens of these that became output."""


class EngineFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The engine's own figures; totals count from its start."""

    running: int
    waiting: int
    generated_tokens: int
    prefix_queries: int
    """Prompt tokens that were looked up in the cache."""
    prefix_hits: int
    """Prompt tokens of these that were found."""
    preemptions: int
    kv_blocks: KvBlocks
    steps: StepTotals
    drafts: DraftTotals | None
    """None where nothing is drafted."""

    @classmethod
    def of(cls, stats: EngineStats) -> EngineFigures:
        decoded, drafted, drafts = stats.tokens_decoded, stats.tokens_drafted, stats.drafts
        seconds = 0.0 if stats.step_seconds is None else stats.step_seconds.total
        return cls(
            running=stats.running,
            waiting=stats.waiting,
            generated_tokens=stats.tokens_generated,
            prefix_queries=stats.prefix_queries,
            prefix_hits=stats.prefix_hits,
            preemptions=stats.preemptions,
            kv_blocks=KvBlocks(
                total=stats.kv_blocks_total,
                used=stats.kv_blocks_used,
                cached=stats.kv_blocks_kept,
            ),
            steps=StepTotals(
                steps=stats.steps,
                seconds=seconds,
                prefill_tokens=stats.tokens_computed - decoded - drafted,
                decode_tokens=decoded,
                draft_tokens=drafted,
            ),
            drafts=None
            if drafts is None
            else DraftTotals(verified=drafts.draft_tokens, accepted=drafts.accepted_tokens),
        )


class EngineSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The engine at one moment: levels as they are, and totals that only grow.

    What happened between two snapshots is the difference of their totals, whatever was missed in
    between. A total that is smaller than before counts from a new start.
    """

    time: float
    """Seconds on a clock of the server that goes on evenly; only differences mean anything."""
    model: str
    trouble: str | None
    """Why the engine cannot serve now; null while it can."""
    step_seconds: float
    """How long the present step has run, as of the engine's last sign of life."""
    engine: EngineFigures | None
    """Null where the engine does not answer: it is in a long step, or is being restarted."""
    first_token_seconds: Buckets
    """Times from a request's arrival to its first token, of all requests so far: ``counts`` of
    those up to each of ``bounds``, and above, and their sum, ``total``."""
    inter_token_seconds: Buckets
    """Times between tokens of a sequence, likewise."""


class EngineEvents:
    """Samples the engine once for all who watch, and not at all while nobody does.

    A watcher that reads slowly gets the newest snapshot when it is ready for it, and misses those
    between. Watching ends with the server: a watcher is no work that a stop would wait for.
    """

    def __init__(
        self, engine: Supervisor, requests: OpenRequests, counts: Counts, model: str
    ) -> None:
        self._engine = engine
        self._requests = requests
        self._counts = counts
        self._model = model
        self._watchers = 0
        self._sampling: asyncio.Task[None] | None = None
        self._newest: bytes | None = None
        self._changed = asyncio.Event()  # replaced with each snapshot

    async def events(self) -> AsyncGenerator[bytes, None]:
        """Yield snapshots as server-sent events, at most four a second, until the server stops."""
        self._watchers += 1
        if self._sampling is None or self._sampling.done():
            self._newest = None
            self._sampling = asyncio.ensure_future(self._sample())
        sampling = self._sampling
        try:
            sent: bytes | None = None
            while not sampling.done():
                changed = self._changed
                if self._newest is not None and self._newest is not sent:
                    sent = self._newest
                    yield sent
                await changed.wait()
        finally:
            self._watchers -= 1
            if self._watchers == 0 and self._sampling is not None:
                self._sampling.cancel()
                self._sampling = None

    async def _sample(self) -> None:
        asked: asyncio.Future[EngineStats] | None = None
        try:
            while not self._requests.stopping or len(self._requests):
                asked = asked or asyncio.ensure_future(self._engine.stats())
                await asyncio.wait({asked}, timeout=PATIENCE_S)
                stats = None
                if asked.done():
                    with contextlib.suppress(PenstockError):  # the snapshot has the trouble
                        stats = asked.result()
                    asked = None
                self._newest = event(msgspec.json.encode(self._snapshot(stats)))
                self._wake()
                await asyncio.sleep(SAMPLE_S)
        except Exception:
            _log.exception("watching the engine failed")
        finally:
            if asked is not None:
                asked.cancel()
            # Watchers look once more, and find that this task is over.
            asyncio.get_running_loop().call_soon(self._wake)

    def _wake(self) -> None:
        # An event that stayed set would keep its watchers from ever waiting again.
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _snapshot(self, stats: EngineStats | None) -> EngineSnapshot:
        return EngineSnapshot(
            time=time.monotonic(),
            model=self._model,
            trouble=self._requests.draining or self._engine.trouble,
            step_seconds=self._engine.llm.process.step_s,
            engine=None if stats is None else EngineFigures.of(stats),
            first_token_seconds=self._counts.first_token,
            inter_token_seconds=self._counts.inter_token,
        )
