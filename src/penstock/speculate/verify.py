"""Verifies drafts so that the output is exactly what plain decoding would have sampled.

A draft token d was decided before its position is drawn, so its distribution q is all on d.
Rejection sampling (Leviathan et al. 2023, Chen et al. 2023) accepts it with probability
min(1, p(d) / q(d)) = p(d), and else draws from what max(0, p - q) leaves: p without d. Drawing x
from p and accepting if x = d, with x itself as the replacement if not, is just that: x is d with
probability p(d), and given that it is not, it is distributed as p without d. Here x is the very
draw of plain decoding, since draws are hashes of the sequence's key and the position
(:mod:`penstock.sampling.draws`), so not only its distribution is that of plain decoding but its
value, whatever the draft was and whether there was one. Penalties, ``min_tokens`` and whatever
else depends on the output so far hold too, since each token is added to the sampling state before
the next draw.

A tree has several candidates for one position. Trying them in turn, each against the residual that
those before it leave, is by the same argument drawing x from p once, and going on with the
candidate that equals x, if there is one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from penstock.interface.logprobs import TokenLogprobs
from penstock.interface.mask import TokenMask
from penstock.interface.sampler import Sampled, Sampler, SamplingState
from penstock.interface.step import StepResult
from penstock.scheduler.draft import Draft
from penstock.scheduler.output import ScheduledStep
from penstock.speculate.typical import Typical

if TYPE_CHECKING:
    from penstock.grammar.matcher import Matcher
    from penstock.scheduler.sequence import SequenceState


class Verified(msgspec.Struct, frozen=True):
    """The outcome of one step, indexed by its samples."""

    tokens: list[list[int]]
    """The accepted tokens of each sample and one more; empty where there is an error."""
    errors: dict[int, str]
    """The reason, for each sample without a token."""
    logprobs: dict[int, list[TokenLogprobs]]
    """One entry for each token, for samples that want them."""


class _Run(NamedTuple):
    """The progress of verification along the draft of one sequence."""

    sample: int
    first_row: int
    """Row of the last known token; those of its draft follow."""
    draft: Draft | None
    node: int = -1
    """Index of the last accepted token in the draft; -1 if none was."""

    @property
    def row(self) -> int:
        return self.first_row + 1 + self.node

    @property
    def num_rows(self) -> int:
        return 1 if self.draft is None else 1 + len(self.draft)

    def child(self, token: int) -> int:
        """Return what ``Draft.child`` does for the last accepted token."""
        return -1 if self.draft is None else self.draft.child(self.node, token)


class _Texts:
    """The grammar states of sequences along their drafts, which verification may yet reject."""

    def __init__(
        self, samples: Sequence[SequenceState], masks: Sequence[TokenMask | None] | None
    ) -> None:
        self._samples = samples
        self._masks = masks
        self._ahead: dict[int, Matcher] = {}

    def masks(self, runs: Sequence[_Run]) -> list[TokenMask | None] | None:
        """Return the masks of the next token of each run; None if there are none."""
        if self._masks is None:
            return None
        ahead, masks = self._ahead, self._masks
        return [ahead[r.sample].mask if r.sample in ahead else masks[r.sample] for r in runs]

    def goes_on(self, sample: int, token: int) -> bool:
        """Take an accepted token into account; return whether another may follow it."""
        matcher = self._samples[sample].matcher
        if matcher is None:
            return True
        if token in self._samples[sample].ending_token_ids:
            return False
        ahead = self._ahead.get(sample)
        if ahead is None:
            ahead = self._ahead[sample] = matcher.clone()
        ahead.advance(token)
        goes_on = not ahead.complete and ahead.error is None
        if goes_on and not ahead.known:
            ahead.compute()
            matcher.learn(ahead)
            # What slow masks could save is not worth what they cost here.
            goes_on = ahead.error is None and not ahead.complete and not matcher.slow
        return goes_on


def verify(
    sampler: Sampler[Any],
    result: StepResult,
    step: ScheduledStep,
    masks: Sequence[TokenMask | None] | None = None,
    typical: Typical | None = None,
    late: frozenset[int] = frozenset(),
) -> Verified:
    """Sample the next tokens of every sample of an executed step, along its draft if it has one.

    ``masks`` are those of the samples' next tokens, as in ``Sampler.sample``. With ``typical``,
    sequences that it applies to may accept a drafted token that was not sampled. Sampling states
    are updated; grammar matchers are left as they are. Samples that are ``late`` draw nothing.
    Where a later row is unusable (NaN logits) verification ends before it: that row is the first of
    the next step, and fails the request there as it would have without drafts.
    """
    states = step.sampling_states
    verified = Verified([[] for _ in states], {}, {})
    drafts: list[Draft | None] = [None] * len(states)
    i = 0
    for each in step.sequences:
        if each.draft is not None:
            drafts[i] = each.draft
        i += len(each.samples)
    runs: list[_Run] = []
    plain: list[_Run] = []
    for i, (row, draft) in enumerate(zip(step.sample_rows, drafts, strict=True)):
        if i in late:
            continue
        (plain if states[i].plain else runs).append(_Run(i, row, draft))
    if plain:
        _take_largest(sampler, result, plain, states, verified)
    texts = _Texts(step.samples, masks)
    while runs:
        sampled = sampler.sample(
            result,
            [run.row for run in runs],
            [states[run.sample] for run in runs],
            texts.masks(runs),
        )
        if typical is not None:
            _let_pass(typical, result, runs, step.samples, sampled)
        runs = _go_on(sampled, runs, states, texts, verified)
    return verified


def _take_largest(
    sampler: Sampler[Any],
    result: StepResult,
    runs: list[_Run],
    states: list[SamplingState],
    into: Verified,
) -> None:
    """Verify greedy sequences, whose rows can all be sampled at once."""
    rows = [row for run in runs for row in range(run.first_row, run.first_row + run.num_rows)]
    owners = [states[run.sample] for run in runs for _ in range(run.num_rows)]
    sampled = sampler.sample(result, rows, owners)
    chosen, errors = sampled.token_ids, sampled.errors
    first = 0
    for run in runs:
        tokens, draft, node = into.tokens[run.sample], run.draft, -1
        while first + 1 + node not in errors:
            token = chosen[first + 1 + node]
            tokens.append(token)
            node = -1 if draft is None else draft.child(node, token)
            if node < 0:
                break
        if not tokens:
            into.errors[run.sample] = errors[first]
        first += run.num_rows


def _let_pass(
    typical: Typical,
    result: StepResult,
    runs: list[_Run],
    samples: Sequence[SequenceState],
    sampled: Sampled,
) -> None:
    """Replace sampled tokens by drafted ones that pass typical acceptance."""
    for at, run in enumerate(runs):
        params = samples[run.sample].params
        if run.draft is None or at in sampled.errors or not typical.applies_to(params):
            continue
        logits = result.logits[run.row]
        token = typical.passing(logits, params.temperature, run.draft, run.node)
        if token >= 0:
            sampled.token_ids[at] = token


def _go_on(
    sampled: Sampled, runs: list[_Run], states: list[SamplingState], texts: _Texts, into: Verified
) -> list[_Run]:
    """Take one token for each run; return the runs whose draft goes on."""
    further = []
    for at, run in enumerate(runs):
        i = run.sample
        error = sampled.errors.get(at)
        if error is not None:
            if run.node < 0:
                into.errors[i] = error
            continue
        token = sampled.token_ids[at]
        states[i].append(token)
        into.tokens[i].append(token)
        if at in sampled.logprobs:
            into.logprobs.setdefault(i, []).append(sampled.logprobs[at])
        node = run.child(token)
        if node >= 0 and texts.goes_on(i, token):
            further.append(run._replace(node=node))
    return further
