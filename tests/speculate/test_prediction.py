"""Outputs that clients predict come in fewer steps, and are what they are without predictions."""

from __future__ import annotations

import dataclasses
import itertools
import random
from array import array
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.drafted import LIMITS, Play, mixed, plain_stories, plays, run_core
from support.oracle import Oracle, Recorder, Texts
from support.overlap_executor import Deferred, HashExecutor
from support.overlapped import POISON, VOCAB, check, make_core, stateful
from support.stories import Arrival, Stories, play, same

from penstock.engine.loader import EnginePlan
from penstock.errors import RequestError
from penstock.interface.messages import EngineRequest, EngineStats
from penstock.sampling.params import SamplingParams
from penstock.speculate.prediction import PredictedPlace, PredictedText
from penstock.speculate.speculation import Speculation
from penstock.speculate.suffix import SuffixAutomaton

GREEDY = SamplingParams(temperature=0, max_tokens=120, ignore_eos=True, logit_bias={POISON: -100.0})
PROMPT = [3, 4, 5]


def steps_of(prediction: Sequence[int], output: Sequence[int], most: int = 16) -> tuple[int, int]:
    """Steps that an output takes after its first token, and tokens that were drafted in vain."""
    place = PredictedPlace(PredictedText(array("i", prediction), SuffixAutomaton), 2, most)
    tokens, steps, vain = array("i", [1, 1, output[0]]), 0, 0
    while len(tokens) - 2 < len(output):
        draft = place.following(tokens, most)
        assert len(draft) <= most
        ahead = output[len(tokens) - 2 :]
        right = 0
        while right < min(len(draft), len(ahead) - 1) and draft[right] == ahead[right]:
            right += 1
        tokens.extend(ahead[: right + 1])
        vain += len(draft) - right
        steps += 1
    return steps, vain


def test_what_is_as_predicted_comes_in_drafts_that_grow() -> None:
    text = list(range(10, 110))
    steps, vain = steps_of(text, text)
    assert steps == 7  # 1 + 5 + 9 + 5 * 17 = 100
    assert vain <= 1, "the last token of an output is never drafted"
    assert steps_of(text, text, most=3)[0] == 25


def edited(text: list[int], kind: str) -> list[int]:
    if kind == "replaced":
        return [*text[:50], 7, *text[51:]]
    if kind == "added":
        return [*text[:50], 7, 8, 9, *text[50:]]
    if kind == "left out":
        return text[:50] + text[60:]
    if kind == "moved":
        return text[50:] + text[:50]
    return [7, 8, *text]  # begun otherwise


@pytest.mark.parametrize("kind", ["replaced", "added", "left out", "moved", "begun otherwise"])
def test_an_edit_is_found_behind(kind: str) -> None:
    text = list(range(10, 110))
    steps, vain = steps_of(text, edited(text, kind))
    assert steps <= 7 + 9
    assert vain <= 20


def test_a_wrong_prediction_costs_little() -> None:
    draw = random.Random(5)
    text, output = ([draw.randrange(9) for _ in range(400)] for _ in range(2))
    steps, vain = steps_of(text, output)
    assert vain < 100, "a tenth of what drafts of four tokens at each step would cost"
    assert steps_of([1], output) == (399, 0)
    assert steps < 399


def asked(place: PredictedPlace, output: Sequence[int]) -> int:
    """How often the place is looked for while the tokens of an output come one by one."""
    count, tokens = 0, array("i", [1, 1])
    for token in output:
        tokens.append(token)
        if place.may_follow(len(tokens)):
            count += 1
            place.following(tokens, 16)
    return count


def test_what_is_not_found_is_seldom_looked_for() -> None:
    place = PredictedPlace(PredictedText(array("i", [5, 6, 7]), SuffixAutomaton), 2, 16)
    assert asked(place, [9] * 100) == 16 + 84 // 4


def predicted(listed: list[Arrival], texts: Texts, right: float, draw: random.Random) -> Any:
    """The same arrivals, each with a prediction of its first sequence that is spoiled a little."""
    outputs = {}
    for (_, prompt), text in texts.items():
        outputs.setdefault(prompt, text[len(prompt) :])

    def spoiled(prompt: list[int]) -> tuple[int, ...]:
        made: list[int] = []
        for token in outputs.get(tuple(prompt), []):
            if draw.random() < right:
                made.append(token)
            elif draw.random() < 0.5:
                made += [draw.randrange(VOCAB) for _ in range(draw.randrange(1, 5))]
        return tuple(made)

    return [dataclasses.replace(each, prediction=spoiled(each.prompt)) for each in listed]


def run_alone(
    engine_plan: EnginePlan, listed: list[Arrival], overlaps: bool, num_blocks: int, **limits: int
) -> tuple[Stories, EngineStats]:
    """Play the requests in an engine that has no speculation of its own."""
    inner = HashExecutor(num_blocks, VOCAB, POISON)
    core = make_core(engine_plan, Deferred(inner, failed_token=9) if overlaps else inner, **limits)
    stories = play(core, listed, lambda: check(core, inner))
    stats = core.stats()
    assert stats.kv_blocks_used == 0
    core.close()
    return stories, stats


@pytest.mark.slow
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    plays, st.sampled_from([0.0, 0.8, 0.97, 1.0]), st.sampled_from([None, 0.0, 0.7]), st.booleans()
)
def test_whatever_is_predicted_it_is_the_same(
    engine_plan: EnginePlan, play: Play, right: float, quiet: float | None, alone: bool
) -> None:
    limits = {"max_num_seqs": play.seqs, "max_num_batched_tokens": play.seqs + play.more}
    recorder = Recorder()
    shared: Any = (play.num_tokens, play.num_blocks)
    plain, _ = run_core(engine_plan, play.listed, recorder, *shared, **limits)
    texts = recorder.texts()
    listed = predicted(play.listed, texts, right, random.Random(3))
    if alone:
        stories, _ = run_alone(engine_plan, listed, quiet is not None, play.num_blocks, **limits)
    else:
        oracle = Oracle(texts, VOCAB, 0.7, branching=True)
        stories, _ = run_core(engine_plan, listed, oracle, *shared, quiet=quiet, **limits)
    same(stories, plain)


@pytest.mark.parametrize("overlaps", [False, True])
def test_requests_of_every_kind(engine_plan: EnginePlan, overlaps: bool) -> None:
    """Some are preempted, some abort, and the first steps are in flight when predictions come."""
    plain, texts, without = plain_stories(engine_plan)
    listed = predicted(mixed(), texts, 0.97, random.Random(3))
    listed = [dataclasses.replace(each, at=3 * i) for i, each in enumerate(listed)]
    later = [dataclasses.replace(each, at=3 * i) for i, each in enumerate(mixed())]
    plain, _ = run_alone(engine_plan, later, overlaps, 9, **LIMITS)
    stories, stats = run_alone(engine_plan, listed, overlaps, 9, **LIMITS)
    same(stories, plain)
    assert stats.drafts is not None
    assert stats.drafts.accepted_tokens > 100
    assert stats.steps < without.steps * 0.7


def output_of(engine_plan: EnginePlan) -> tuple[int, ...]:
    stories, _ = run_alone(engine_plan, arrival(()), False, 30)
    return tuple(stories["0", 0, 0].tokens)


def arrival(prediction: tuple[int, ...]) -> list[Arrival]:
    return [Arrival(0, PROMPT, GREEDY, 0, None, None, False, prediction)]


def test_an_edit_takes_a_third_of_the_steps(engine_plan: EnginePlan) -> None:
    output = output_of(engine_plan)
    changed = (*output[:60], 1, 1, *output[61:])
    stories, stats = run_alone(engine_plan, arrival(changed), False, 30)
    assert tuple(stories["0", 0, 0].tokens) == output
    assert len(output) / stats.steps >= 3
    assert stats.drafts is not None
    assert stats.drafts.accepted_tokens == stats.tokens_generated - stats.steps
    assert len(stats.drafts.accepted_by_position) == 16


def test_steps_overlap_where_nothing_is_predicted_any_more(engine_plan: EnginePlan) -> None:
    inner = HashExecutor(30, VOCAB, POISON)
    executor = Deferred(inner)
    core = make_core(engine_plan, executor)
    short = msgspec.structs.replace(GREEDY, max_tokens=2)
    prediction = output_of(engine_plan)
    first = EngineRequest(
        request_id="a", prompt_token_ids=PROMPT, params=short, prediction=list(prediction)
    )
    core.add_request(first)
    while core.has_work:
        core.step()
    play(core, arrival(()), lambda: check(core, inner))
    assert executor.behind > 100


def test_a_controller_learns_nothing_of_predictions(engine_plan: EnginePlan) -> None:
    """The proposer's drafts are always wrong, and its budget is soon spent: predictions go on."""
    output = output_of(engine_plan)
    recorder = Recorder()
    run_core(engine_plan, arrival(()), recorder)
    inner = HashExecutor(30, VOCAB, POISON)
    wrong = Oracle(recorder.texts(), VOCAB, 0.0)
    speculation = Speculation(wrong, 4, True, lambda: float(inner.rows_run))
    core = make_core(engine_plan, inner, speculation)
    run = [*arrival(()), *(dataclasses.replace(each, at=20) for each in arrival(output))]
    stories = play(core, run, lambda: check(core, inner))
    assert tuple(stories["1", 0, 0].tokens) == output
    stats = core.stats()
    assert stats.drafts is not None
    assert stats.drafts.accepted_tokens > 100


def test_a_scheduler_keeps_room_for_the_logits_of_all(engine_plan: EnginePlan) -> None:
    """There are 256 rows of logits beside those of sequences, without speculation."""
    output = output_of(engine_plan)
    listed = [dataclasses.replace(arrival(output)[0], prompt=PROMPT) for _ in range(20)]
    config = msgspec.structs.replace(engine_plan.config, max_logit_rows=300, max_num_seqs=32)
    plan = dataclasses.replace(engine_plan, config=config)
    inner = HashExecutor(300, VOCAB, POISON)
    core = make_core(plan, inner)
    drafted = [0]
    for i, each in enumerate(listed):
        core.add_request(
            EngineRequest(
                request_id=str(i),
                prompt_token_ids=each.prompt,
                params=each.params,
                prediction=list(each.prediction),
            )
        )
    while core.has_work:
        core.step()
        drafted.append(core.stats().tokens_drafted)
    assert max(b - a for a, b in itertools.pairwise(drafted)) == 256


def test_where_nothing_can_be_taken_back_it_is_refused(engine_plan: EnginePlan) -> None:
    core = make_core(stateful(engine_plan, 64), HashExecutor(30, VOCAB, POISON))
    request = EngineRequest(
        request_id="a", prompt_token_ids=PROMPT, params=GREEDY, prediction=[3, 4]
    )
    with pytest.raises(RequestError, match="--speculative ngram"):
        core.check(request)
    core.check(msgspec.structs.replace(request, prediction=[]))
    with pytest.raises(RequestError, match="prediction"):
        make_core(engine_plan, HashExecutor(30, VOCAB)).check(
            msgspec.structs.replace(request, prediction=[VOCAB])
        )
