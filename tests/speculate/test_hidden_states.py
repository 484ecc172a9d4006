"""Which rows of a step a head gets, where samples drew nothing."""

from __future__ import annotations

from array import array

from penstock.interface.messages import EngineRequest
from penstock.scheduler.draft import Draft
from penstock.scheduler.output import ScheduledSequence, ScheduledStep
from penstock.scheduler.sequence import SequenceState, Status, make_sequences
from penstock.speculate.hidden_states import hidden_rows


def running(name: str) -> SequenceState:
    sequence = make_sequences(EngineRequest(request_id=name, prompt_token_ids=[1] * 9), seed=0)
    sequence.status = Status.RUNNING
    return sequence


def step(*listed: ScheduledSequence) -> ScheduledStep:
    return ScheduledStep(
        list(listed),
        [s for each in listed for s in each.samples],
        [],
        [],
        sum(each.num_tokens for each in listed),
        sum(each.num_logits for each in listed),
        num_hidden=sum(each.num_hidden for each in listed),
    )


def test_the_row_that_is_computed_again_is_reported_then() -> None:
    a, b, c = running("a"), running("b"), running("c")
    decode = [ScheduledSequence(s, 8, 1, 1, (s,)) for s in (a, b)]
    assert [(t.sequence, t.first, list(t.rows)) for t in hidden_rows(step(*decode), [[5], []])] == [
        (a, 8, [0])
    ]
    prefill = ScheduledSequence(b, 4, 5, 1, (b,), num_hidden=4)
    drafted = ScheduledSequence(c, 8, 3, 3, (c,), draft=Draft(array("i", [7, 7])))
    mixed = step(decode[0], prefill, drafted)
    reported = hidden_rows(mixed, [[5], [], []])
    assert [(t.sequence, t.first, list(t.rows)) for t in reported] == [
        (a, 8, [0]),
        (b, 4, [5, 6, 7, 8]),
    ]
    reported = hidden_rows(mixed, [[5], [5], [7, 8]])
    assert [(t.sequence, t.first, list(t.rows)) for t in reported] == [
        (a, 8, [0]),
        (b, 4, [5, 6, 7, 8, 1]),
        (c, 8, [2, 3]),
    ]
