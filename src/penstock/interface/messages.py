"""What passes between a front end and the engine: msgspec structs, in process or over a socket.

A front end owns text (tokenizing, detokenizing, stop strings); the engine owns token ids.
"""

from __future__ import annotations

import enum
from typing import Literal

import msgspec

from penstock.cache.geometry import BLOCK_SIZE
from penstock.interface.buckets import Buckets
from penstock.interface.logprobs import TokenLogprobs
from penstock.pooling.params import PoolingParams
from penstock.sampling.params import SamplingParams


class FinishReason(enum.Enum):
    """Why a sequence ended. ``value`` is what OpenAI's API calls it."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


class Tenant(msgspec.Struct, frozen=True):
    """Who a request is from: tenants share the engine fairly, whatever each of them asks for."""

    name: str = ""
    weight: float = 1.0
    """The tenant's share of the engine, relative to other tenants; more than 0."""
    user: str = ""
    """Name of the tenant's user. Users of a tenant share equally what the tenant has."""


class RequestOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a request besides its prompt and what to generate from it."""

    priority: int = 0
    """Requests with a lower value run first; within one priority, tenants take turns."""
    cache_salt: str = ""
    """Requests share cached prefixes only with requests of the same salt."""
    tenant: Tenant = Tenant()
    adapter: str = ""
    """The digest of the adapter that the request uses; empty: none."""
    prediction: list[int] = []
    """Tokens of which the output is expected to have much: drafts are made of them, so that it
    comes sooner where that is so. It is the same whatever they are."""
    keep_s: float = 0.0
    """Seconds for which the prompt is to stay on disk at least, where blocks are kept there, and as
    far as such promises have room."""


class EngineRequest(msgspec.Struct, tag="request", frozen=True, kw_only=True):
    """One prompt to complete, or to embed.

    ``params.n`` sequences come back under the same id; of one to embed, a single update.
    """

    request_id: str
    prompt_token_ids: list[int]
    params: SamplingParams = SamplingParams()
    pooling: PoolingParams | None = None
    """If set, the prompt is embedded and nothing is generated; ``params`` is then not read."""
    priority: int = 0
    """The priority, as in RequestOptions, as are the fields that follow."""
    cache_salt: str = ""
    tenant: Tenant = Tenant()
    adapter: str = ""
    prediction: list[int] = []
    keep_s: float = 0.0

    @classmethod
    def of(
        cls,
        request_id: str,
        prompt_token_ids: list[int],
        asked: SamplingParams | PoolingParams,
        options: RequestOptions,
    ) -> EngineRequest:
        """A prompt to complete, or one to embed, as the type of ``asked`` says."""
        params, pooling = (
            (SamplingParams(), asked) if isinstance(asked, PoolingParams) else (asked, None)
        )
        return cls(
            request_id=request_id,
            prompt_token_ids=prompt_token_ids,
            params=params,
            pooling=pooling,
            priority=options.priority,
            cache_salt=options.cache_salt,
            tenant=options.tenant,
            adapter=options.adapter,
            prediction=options.prediction,
            keep_s=options.keep_s,
        )


class Abort(msgspec.Struct, tag="abort", frozen=True):
    """Stop these requests now; unknown ids are ignored (they may have just ended)."""

    request_ids: list[str]
    index: int | None = None  # only this sequence of each, which must have output


class SequenceUpdate(msgspec.Struct, array_like=True, gc=False):
    """New tokens of one sequence of one request, from one step.

    The message of which there are most: on the wire an array, without names of fields.
    """

    request_id: str
    index: int  # which of the request's n sequences
    token_ids: list[int]
    logprobs: list[TokenLogprobs] | None = None  # one per token in token_ids
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    """One entry per prompt token, of which the first is None. Sent once, in the first update of the
    sequence of index 0."""
    num_cached_tokens: int = 0  # prompt tokens found in the prefix cache
    finish_reason: FinishReason | None = None
    stop_reason: int | None = None  # the stop token id, if one of stop_token_ids ended it
    error: str | None = None  # with FinishReason.ERROR: what happened to this request
    scheduled_at: float = 0.0
    """When the request first ran, on the clock of time.monotonic(), which processes share."""
    ends_in_text: bool = False
    """Set with FinishReason.STOP if the last token is text that completes the grammar, not a stop
    token."""
    embedding: bytes | None = None
    """The embedding, in the last update of a pooling request; ``penstock.pooling.pooler`` has the
    format."""
    num_drafted: int = 0  # tokens that were drafted for the sequence and verified, so far
    num_accepted: int = 0  # of these, those that became output
    refused: bool = False
    """Set with ``error`` if the request asks for something impossible; the engine did not fail."""
    num_restored_tokens: int = 0
    """Number of the ``num_cached_tokens`` whose blocks came from a tier below the pool."""
    num_host_tokens: int = 0
    """Number of the ``num_restored_tokens`` whose blocks came from the host's memory; the others
    came from disk."""


class DraftStats(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot of :class:`~penstock.speculate.figures.Figures`."""

    steps: int  # that verified a draft
    drafts: int  # of one sequence in one step
    draft_tokens: int  # that were verified
    draft_levels: int  # tokens of each draft's longest path: of chains, all
    accepted_tokens: int  # of these, those that were drawn
    rejections: int  # drafts of which fewer were than the longest path has
    accepted_by_position: list[int]
    draft_seconds: float  # what making drafts took


class HandoverStats(msgspec.Struct, frozen=True, kw_only=True):
    """Prompts that a decode engine had others compute, or that a prefill engine computed for
    others."""

    role: Literal["prefill", "decode"]
    peers: int  # engines of the other role that are connected
    open: int  # handovers that are not over
    completed: int  # of which all blocks came, or went
    failed: int  # that were over before
    declined: int = 0  # prompts with blocks missing that were not worth a handover, or had no peer
    bytes: int  # of blocks
    tokens: int  # of prompts whose blocks came, or went
    recomputed_tokens: int = 0  # of handovers, whose blocks had to be computed after all

    def added_to(self, stats: EngineStats) -> EngineStats:
        """``stats`` with these; requests of open handovers wait."""
        waiting = stats.waiting + (self.open if self.role == "decode" else 0)
        return msgspec.structs.replace(stats, waiting=waiting, handover=self)


TierName = Literal["host", "disk"]
"""A tier below the pool of blocks: the host's memory, where the pool is a GPU's, or a disk."""


class TierStats(msgspec.Struct, frozen=True, kw_only=True):
    """What a tier below the pool of blocks has, and did so far."""

    name: TierName
    blocks: int  # that can be found, of all groups of layers
    unwritten_bytes: int  # of blocks that wait to be written
    pinned_blocks: int  # of blocks, those that never make room
    aside: int  # sequences that wait for their blocks though their turn has come
    fetches: int  # sequences for which blocks were read
    declined: int  # for which reading would have taken longer than computing
    given_up: int  # of fetches, those of which not all came, or not in time
    restored_tokens: int  # of prompts, whose blocks came from the tier
    saved_seconds: float  # what computing these would have taken
    read_bytes: int
    read_seconds: float  # of all threads that read
    written_bytes: int
    missed_blocks: int  # that were gone from the pool before they could be written
    evicted_blocks: int  # that made room for others
    damaged_blocks: int  # that were not what their checksum says, and were dropped
    failures: int  # reads and writes that the system refused
    fetch_seconds: Buckets | None = None  # how long it took until a sequence's blocks had come


class EngineStats(msgspec.Struct, tag="stats", frozen=True, kw_only=True):
    """A snapshot of the engine's gauges and counters."""

    running: int
    waiting: int
    kv_blocks_total: int
    kv_blocks_used: int  # held by live requests; cached-but-free blocks are not counted
    prefix_queries: int  # prompt tokens looked up
    prefix_hits: int  # prompt tokens found
    preemptions: int
    steps: int
    tokens_computed: int
    tokens_generated: int
    tokens_decoded: int = 0  # of tokens_computed, the one that a sequence needed for its next token
    tokens_drafted: int = 0  # of tokens_computed, draft tokens; the rest are those of prefill
    kv_block_tokens: int = BLOCK_SIZE  # token slots of a block
    kv_blocks_kept: int = 0  # blocks that are free and hold content that can be found
    kv_slots_allocated: int = 0  # token slots of the blocks that live requests hold
    kv_slots_filled: int = 0  # of these, slots that hold a computed token
    states_total: int = 0  # state slots; none where layers keep no states
    states_used: int = 0
    step_seconds: Buckets | None = None  # how long steps took
    step_tokens: Buckets | None = None  # token positions that steps computed
    drafts: DraftStats | None = None  # the results of speculation, where it is used
    handover: HandoverStats | None = None  # where prompts are computed apart
    running_adapters: list[str] = []  # digests of those that running sequences use
    waiting_adapters: list[str] = []  # and of those that waiting ones want
    tier: TierStats | None = None  # where blocks are kept on disk
    host_tier: TierStats | None = None  # where they are kept in the host's memory below a GPU's
