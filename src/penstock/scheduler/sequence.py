"""The state of one sequence of a request: its tokens, how far it is computed, when it ends."""

from __future__ import annotations

import enum
from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from penstock.cache.block_table import BlockTable
from penstock.interface.adapters import NO_ADAPTER, Adapter
from penstock.interface.messages import EngineRequest, FinishReason, Tenant
from penstock.pooling.params import PoolingParams
from penstock.sampling.draws import sequence_key
from penstock.sampling.params import SamplingParams

if TYPE_CHECKING:
    from penstock.grammar.matcher import Matcher
    from penstock.interface.sampler import SamplingState


class Status(enum.Enum):
    """The state of a sequence. Only a running one holds cache blocks."""

    PENDING = "pending"  # waits for the first sequence of its request to finish the prompt
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(eq=False, slots=True)
class SequenceState:
    """One of a request's ``params.num_sequences`` sequences.

    ``token_ids`` is the prompt and then the output. The keys and values of the first
    ``num_computed`` of them are in the cache; a step advances ``num_computed`` toward
    ``num_tokens``, and the scheduler alone changes both. Exporting the buffer of ``token_ids``
    for longer than a call (``np.frombuffer``) blocks its growth: copy instead.

    While a step is in flight and the next is scheduled, what it computes counts as computed, and
    a *placeholder* stands for the token that it samples for this sequence: ``~i``, a negative
    number, ``i`` being its index in the step's samples.
    """

    request_id: str
    index: int
    token_ids: array[int]
    num_prompt_tokens: int
    params: SamplingParams
    priority: int
    tenant: Tenant
    key: int
    """Key of its random draws; see ``sampling/draws.py``."""
    ending_token_ids: frozenset[int]
    """Stop tokens, and the end-of-sequence tokens unless ``ignore_eos`` is set."""
    eos_token_ids: frozenset[int]  # empty with ignore_eos
    table: BlockTable
    num_prompt_rows: int
    """Number of leading prompt positions whose rows are not wanted, or no longer: their logits (for
    ``prompt_logprobs``), or their hidden states if the request is pooled."""
    wants_prompt_rows: bool
    """Whether rows of any prompt positions before the last are still wanted."""
    max_total_tokens: int = 0
    """Maximum number of tokens, prompt and output together; set when the request is added."""
    most_blocks: int = 0
    """Blocks that it holds with so many tokens; set when the request is added."""
    arrival: int = -1
    status: Status = Status.PENDING
    started: bool = False
    """Whether it has run, or was forked from a sequence that has; the prefix statistics then
    include it."""
    num_preemptions: int = 0
    """How often it gave its blocks back before its end."""
    num_computed: int = 0
    num_cached_tokens: int = 0
    """Number of prompt tokens that were found in the prefix cache when the request first ran."""
    num_restored_tokens: int = 0
    """Number of cached tokens whose blocks came from elsewhere for it (``engine/tiers/``)."""
    num_host_tokens: int = 0
    """Number of these that came from the host's memory."""
    scheduled_at: float = 0.0
    """When the request first ran (time.monotonic())."""
    siblings: tuple[SequenceState, ...] = ()
    """The other sequences of the request; set on the sequence of index 0."""
    finish_reason: FinishReason | None = None
    completed: bool = False
    """Whether it ended because its grammar did: its last token is text, not a stop token."""
    stop_reason: int | None = None
    """The token id of ``params.stop_token_ids`` that ended the sequence, if one did."""
    runs_ahead: bool = False
    """Whether a step may compute its last token, and sample the next, while the host does not know
    the last."""
    matcher: Matcher | None = field(default=None, repr=False)
    """The state of its grammar; set when the grammar is compiled, before the sequence is
    scheduled."""
    is_beam: bool = False
    """Whether its next token is chosen among those of all beams of its request, so that a step
    brings it none: until then nothing of it is left to compute."""
    awaits_mask: bool = False
    """Whether its last token is left uncomputed because the grammar mask of the next is not known
    yet."""
    pooling: PoolingParams | None = None
    """Set for a pooling request, which samples nothing and ends when its prompt is computed."""
    adapter: Adapter | None = field(default=None, repr=False)
    adapter_slot: int = NO_ADAPTER
    """Where its adapter is while it runs."""
    num_drafted: int = 0
    """Number of draft tokens that were verified."""
    num_accepted: int = 0
    """Number of draft tokens that were accepted and became output."""
    sampling_state: SamplingState | None = field(default=None, repr=False)
    """The sampler's state; set when the request is added, but for a pooling request."""
    slots: dict[Slot[Any], Any] = field(default_factory=dict, repr=False)
    """What others keep of it; each finds its own by its :class:`Slot`."""

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_known_tokens(self) -> int:
        """Number of tokens before the first placeholder."""
        known = len(self.token_ids)
        while self.token_ids[known - 1] < 0:
            known -= 1
        return known

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def output_token_ids(self) -> array[int]:
        return self.token_ids[self.num_prompt_tokens :]

    @property
    def order(self) -> tuple[int, int, int]:
        """Key for sorting: by priority, then arrival, then index; the smallest goes first."""
        return (self.priority, self.arrival, self.index)

    def drop_placeholders(self) -> None:
        """Forget the tokens that steps in flight sample: it has ended without them."""
        del self.token_ids[self.num_known_tokens :]

    def prompt_rows_given(self, end: int) -> None:
        """The logits of all wanted prompt positions below ``end`` were computed and reported."""
        last = self.num_prompt_tokens - 1
        self.num_prompt_rows = max(self.num_prompt_rows, min(end, last))
        self.wants_prompt_rows = self.num_prompt_rows < last

    def append(self, tokens: list[int]) -> list[int]:
        """Add sampled tokens until one ends the sequence; return those added.

        The ending token is part of the output. Before ``min_tokens`` output tokens none but the
        length ends it, and the end of its grammar, behind which nothing can follow.
        """
        token_ids = self.token_ids
        before = len(token_ids)
        for token in tokens:
            token_ids.append(token)
            if token in self.ending_token_ids and self.num_output_tokens > self.params.min_tokens:
                self.finish_reason = FinishReason.STOP
                if token not in self.eos_token_ids:
                    self.stop_reason = token
            elif self.matcher is not None and self.matcher.advance(token):
                self.finish_reason = FinishReason.STOP
                self.completed = True
            elif len(token_ids) >= self.max_total_tokens:
                if self.matcher is not None and self.matcher.behind:
                    continue  # whether the text is complete is not known yet: see conclude
                self.finish_reason = FinishReason.LENGTH
            else:
                continue
            return tokens[: len(token_ids) - before]
        return tokens

    def conclude(self) -> None:
        """End a sequence whose last token its grammar has only now taken."""
        assert self.matcher is not None
        self.completed = self.matcher.complete
        self.finish_reason = FinishReason.STOP if self.completed else FinishReason.LENGTH

    def append_at(self, position: int, tokens: list[int]) -> list[int]:
        """Append one token or none as :meth:`append` does, which may replace a placeholder.

        If that is the end, or there is none, a placeholder behind it is dropped.
        """
        behind = self.token_ids[position + 1 :]
        del self.token_ids[position:]
        accepted = self.append(tokens)
        if accepted and self.finish_reason is None:
            self.token_ids.extend(behind)
        return accepted


T = TypeVar("T")


class Slot(Generic[T]):
    """What its owner, whoever makes a slot, keeps of each sequence: a ``T`` or nothing.

    It lives as long as the sequence, so nobody need be told of ends. No other owner finds it.
    """

    def get(self, sequence: SequenceState) -> T | None:
        """Return what is kept of ``sequence``, if anything is."""
        kept: T | None = sequence.slots.get(self)
        return kept

    def set(self, sequence: SequenceState, value: T) -> None:
        """Keep ``value``, in place of what was kept before."""
        sequence.slots[self] = value


def make_sequences(
    request: EngineRequest,
    seed: int,
    eos_token_ids: tuple[int, ...] = (),
    adapter: Adapter | None = None,
) -> SequenceState:
    """The first sequence of a request, with the others as its siblings.

    ``request.params`` is valid; ``seed`` is the request's, or one that the engine drew for it.
    ``adapter`` is the one that the request names.
    """
    params = request.params
    prompt = array("i", request.prompt_token_ids)
    wanted = params.prompt_logprobs is not None
    if request.pooling is not None:
        wanted = request.pooling.wants_all_rows
        if request.pooling.pooling == "cls":  # attention is causal: no other token matters
            del prompt[1:]
    unwanted = max(len(prompt) - 1, 0)
    eos = frozenset(() if params.ignore_eos else eos_token_ids)
    sequences = [
        SequenceState(
            request_id=request.request_id,
            index=index,
            token_ids=prompt[:],
            num_prompt_tokens=len(prompt),
            params=params,
            priority=request.priority,
            tenant=request.tenant,
            key=sequence_key(seed, index),
            ending_token_ids=eos | frozenset(params.stop_token_ids),
            eos_token_ids=eos,
            table=BlockTable(request.cache_salt, request.adapter),
            pooling=request.pooling,
            adapter=adapter,
            num_prompt_rows=0 if wanted and index == 0 else unwanted,
            wants_prompt_rows=wanted and index == 0 and unwanted > 0,
            is_beam=params.beam_search is not None,
        )
        for index in range(params.num_sequences)
    ]
    sequences[0].siblings = tuple(sequences[1:])
    return sequences[0]
