"""What a workload is, in figures: lengths, arrivals, patterns, shared prefixes, conversations."""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

from penstock.workload.arrivals import Arrivals, arrivals_of
from penstock.workload.length_table import LengthTable, length_table
from penstock.workload.observation import ENDPOINTS, ENDS
from penstock.workload.patterns import PATTERNS, Patterns, pattern_name
from penstock.workload.quantiles import Quantiles
from penstock.workload.requests import UNKNOWN, Bools, Ints, ObservedRequests
from penstock.workload.sharing import Sharing


class PatternShares(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of answered requests that are of the four patterns."""

    long_input_from: int
    """The least prompt, in tokens, that counts as long."""
    long_output_from: int
    shares: dict[str, float]


class PrefixFigures(msgspec.Struct, frozen=True, kw_only=True):
    """How much of prompts had been there before."""

    block: int
    """Tokens of a block, in whole ones of which sharing is counted."""
    prompt_tokens: int
    shareable_tokens: int
    """Prompt tokens in blocks that earlier prompts or answers had: what a cache that forgets
    nothing, and knows a prompt as it arrives, would find."""
    cached_tokens: int | None
    """Prompt tokens that the server found in its cache; null where the trace does not say."""
    sharing_requests: int
    """Requests with any shareable token."""


class ConversationFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Prompts that begin with an earlier request's whole prompt and answer. Answers too short to
    fill a block are not recognized."""

    requests: int
    """Requests that continue another one."""
    conversations: int
    """Those that these requests are turns of, whenever they began."""
    longest: int
    """Turns of the longest so far, its first included."""
    new_tokens: Quantiles | None
    """Prompt tokens that a turn adds to what was said."""
    pause_s: Quantiles | None
    """Seconds between the end of an answer and the next turn."""


class WorkloadSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A workload in figures. What there is nothing of is null."""

    requests: int
    forgotten: int
    """Requests before these that are not kept."""
    endpoints: dict[str, int]
    ends: dict[str, int]
    """Requests by why they ended; ``abort`` where the client left, or somebody ended it."""
    several_answers: int
    """Requests for more than one answer to a prompt."""
    prompt_tokens: Quantiles | None
    output_tokens: Quantiles | None
    """Tokens of the longest answer to each prompt; those without any token are left out."""
    table: LengthTable | None
    """Requests by both lengths."""
    patterns: PatternShares | None
    arrivals: Arrivals | None
    prefixes: PrefixFigures | None
    conversations: ConversationFigures | None
    first_token_s: Quantiles | None
    """Time from arrival to first token."""
    per_output_token_s: Quantiles | None
    """Mean time between tokens of a request."""


def summarize(
    requests: ObservedRequests, since: float = -np.inf, patterns: Patterns = PATTERNS
) -> WorkloadSummary:
    """The figures of requests that arrived at ``since`` or later; earlier ones are what these
    share prefixes with."""
    first = 0 if np.isneginf(since) else int(np.searchsorted(requests.arrived, since))
    chosen = np.arange(len(requests)) >= first
    answered = chosen & (requests.output > 0)
    prompt, output = requests.prompt[answered], requests.output[answered]
    sharing = Sharing.of(requests) if requests.has_blocks and chosen.any() else None
    return WorkloadSummary(
        requests=int(chosen.sum()),
        forgotten=requests.forgotten,
        endpoints=_counts(ENDPOINTS, requests.endpoint[chosen]),
        ends=_counts(ENDS, requests.end[chosen]),
        several_answers=int((requests.sequences[chosen] > 1).sum()),
        prompt_tokens=Quantiles.of(requests.prompt[chosen]),
        output_tokens=Quantiles.of(output),
        table=length_table(prompt, output),
        patterns=_patterns(prompt, output, patterns),
        arrivals=arrivals_of(requests.arrived[chosen]),
        prefixes=None if sharing is None else _prefixes(requests, sharing, chosen),
        conversations=None if sharing is None else _conversations(requests, sharing, chosen),
        first_token_s=Quantiles.of(requests.first_token_s[chosen]),
        per_output_token_s=Quantiles.of(_between_tokens(requests, answered)),
    )


def _counts(names: tuple[str, ...], places: Ints) -> dict[str, int]:
    return {each: count for i, each in enumerate(names) if (count := int((places == i).sum()))}


def _patterns(prompt: Ints, output: Ints, patterns: Patterns) -> PatternShares | None:
    if not len(prompt):
        return None
    long_input, long_output = patterns.long_input_from, patterns.long_output_from
    shares = {
        pattern_name(i, o): float(
            np.mean(((prompt >= long_input) == i) & ((output >= long_output) == o))
        )
        for i in (False, True)
        for o in (False, True)
    }
    return PatternShares(long_input_from=long_input, long_output_from=long_output, shares=shares)


def _between_tokens(requests: ObservedRequests, answered: Bools) -> npt.NDArray[np.float64]:
    several = answered & (requests.output > 1)
    decoding = requests.duration_s[several] - requests.first_token_s[several]
    return decoding / (requests.output[several] - 1)


def _prefixes(requests: ObservedRequests, sharing: Sharing, chosen: Bools) -> PrefixFigures:
    shared, cached = sharing.shared_tokens[chosen], requests.cached[chosen]
    return PrefixFigures(
        block=requests.block,
        prompt_tokens=int(requests.prompt[chosen].sum()),
        shareable_tokens=int(shared.sum()),
        cached_tokens=None if (cached == UNKNOWN).any() else int(cached.sum()),
        sharing_requests=int((shared > 0).sum()),
    )


def _conversations(
    requests: ObservedRequests, sharing: Sharing, chosen: Bools
) -> ConversationFigures | None:
    turns = chosen & (sharing.parent >= 0)
    if not turns.any():
        return None
    before = sharing.parent[turns]
    new = requests.prompt[turns] - requests.prompt[before] - requests.output[before]
    return ConversationFigures(
        requests=int(turns.sum()),
        conversations=len(np.unique(sharing.root[turns])),
        longest=int(sharing.turn[turns].max()) + 1,
        new_tokens=Quantiles.of(new),
        pause_s=Quantiles.of(sharing.pause_s[turns]),
    )
