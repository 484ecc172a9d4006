"""Masks that are late: who waits for them, who does not, and what comes out."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.drafted import Fickle
from support.fake_states import FakeStates
from support.grammars import PADDED, byte_engine_plan
from support.late_masks import (
    LETTERS,
    LIMITS,
    QUICK,
    SLOW,
    Held,
    Late,
    ask,
    made,
    mixed,
    played,
    same,
)
from support.oracle import Oracle, Recorder, Texts
from support.overlap_executor import Deferred, HashExecutor
from support.overlapped import stateful

from penstock.engine.loader import EnginePlan
from penstock.grammar import matcher
from penstock.interface.executor import Executor
from penstock.interface.messages import FinishReason
from penstock.speculate.speculation import Speculation


@pytest.fixture(scope="module")
def engine_plan(tmp_path_factory: pytest.TempPathFactory) -> EnginePlan:
    return byte_engine_plan(tmp_path_factory.mktemp("bytes"))


SLOTS = LIMITS["max_num_seqs"] + 3


def states_of(engine_plan: EnginePlan) -> FakeStates | None:
    """The states of a model that keeps some, of which drafts and one token can be taken back."""
    slots = engine_plan.config.num_states
    return FakeStates(slots, log=7) if slots else None


PLAYS = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.slow
@PLAYS
@given(
    st.integers(0, 10**6),
    st.sampled_from([0.1, 0.5, 0.9]),
    st.booleans(),
    st.sampled_from([12, 40]),
    st.booleans(),
    st.sampled_from([QUICK, SLOW, SLOW]),
    st.booleans(),
)
def test_whenever_masks_come_the_tokens_are_the_same(
    engine_plan: EnginePlan,
    seed: int,
    often: float,
    overlapping: bool,
    blocks: int,
    abort: bool,
    slow: float,
    keeps_states: bool,
) -> None:
    stories = []
    engine_plan = stateful(engine_plan, SLOTS if keeps_states else 0)
    aborts = {9: "1", 15: "4"} if abort else None
    for threads, bound in ((Late(seed, often), slow), (Late(seed, 0.0), QUICK)):
        inner = HashExecutor(blocks, PADDED, states=states_of(engine_plan))
        executor = Deferred(inner) if overlapping else inner
        core = made(engine_plan, threads, executor, **LIMITS)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(matcher, "SLOW_SECONDS", bound)
            stories.append(played(core, mixed(seed), aborts))
    same(*stories)


@pytest.mark.slow
@PLAYS
@given(
    st.integers(0, 10**6),
    st.sampled_from([0.1, 0.5, 0.9]),
    st.integers(1, 6),
    st.booleans(),
    st.sampled_from([12, 40]),
    st.sampled_from([QUICK, 0.0002, SLOW]),
    st.sampled_from([None, 0.0, 0.5, 0.9]),
    st.booleans(),
)
def test_nor_do_drafts_change_them(
    engine_plan: EnginePlan,
    seed: int,
    often: float,
    length: int,
    branching: bool,
    blocks: int,
    slow: float,
    quiet: float | None,
    keeps_states: bool,
) -> None:
    """``quiet``: steps overlap, where nothing is drafted by this probability. ``keeps_states``:
    then drafts do not branch."""
    branching = branching and not keeps_states
    engine_plan = stateful(engine_plan, SLOTS if keeps_states else 0)
    recorder = Recorder()
    plain = made(
        engine_plan,
        Late(seed, 0.0),
        HashExecutor(blocks, PADDED, states=states_of(engine_plan)),
        Speculation(recorder, 4),
        **LIMITS,
    )
    timely = played(plain, mixed(seed))
    texts: Texts = recorder.texts()
    oracle = Oracle(texts, PADDED, 0.7, seed, branching)
    executor: Executor = HashExecutor(blocks, PADDED, states=states_of(engine_plan))
    speculation = Speculation(oracle, length)
    if quiet is not None:
        executor, speculation = (
            Deferred(HashExecutor(blocks, PADDED, states=states_of(engine_plan))),
            Fickle(oracle, length, quiet),
        )
    core = made(engine_plan, Late(seed, often), executor, speculation, **LIMITS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(matcher, "SLOW_SECONDS", slow)
        same(played(core, mixed(seed)), timely)


def test_lateness_happens_in_these_tests(
    engine_plan: EnginePlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matcher, "SLOW_SECONDS", QUICK)
    plays = [Late(seed, 0.5) for seed in range(1, 5)]
    for seed, late in enumerate(plays):
        played(made(engine_plan, late, HashExecutor(12, PADDED), **LIMITS), mixed(seed))
    assert sum(late.late for late in plays) > 40
    assert sum(late.idle_waits for late in plays) > 10


@pytest.mark.parametrize("overlapping", [False, True])
def test_others_get_a_token_in_every_step_while_one_waits(
    engine_plan: EnginePlan, overlapping: bool
) -> None:
    held, inner = Held(), HashExecutor(200, PADDED)
    core = made(engine_plan, held, Deferred(inner) if overlapping else inner)
    core.add_request(ask("late", grammar=LETTERS, seed=1))
    late = 0
    while late == 0:  # its first mask is known from compiling
        late += sum(len(u.token_ids) for u in core.step())
    core.add_request(ask("plain", max_tokens=40, ignore_eos=True))
    plain, steps = 0, 0
    while plain < 40:
        plain += sum(len(u.token_ids) for u in core.step() if u.request_id == "plain")
        steps += 1
    assert steps <= 43
    assert late == 1
    assert held.idle_waits == 0
    computed = core.stats().tokens_computed
    for _ in range(5):  # now there is nobody else: it waits, and nothing runs
        assert core.has_work
        assert core.step() == []
    assert held.idle_waits >= 3
    assert core.stats().tokens_computed <= computed + 1
    text: list[int] = []
    while core.has_work:
        held.let_go()
        text += [t for u in core.step() for t in u.token_ids]
        core.check_integrity()
    timely = made(engine_plan, None)
    expected = played(timely, [(0, ask("late", grammar=LETTERS, seed=1))])["late", 0][0]
    assert text == expected[1:]
    core.close()


def test_one_that_waits_can_be_aborted_and_leaves_nothing(engine_plan: EnginePlan) -> None:
    held = Held()
    core = made(engine_plan, held)
    core.add_request(ask("late", grammar=LETTERS, n=2))
    for _ in range(1000):
        if core.stats().tokens_generated:
            break
        core.step()
    for _ in range(5):
        core.step()
    assert [u.finish_reason for u in core.abort(["late"])] == [FinishReason.ABORT] * 2
    assert not core.has_work
    core.check_integrity()
    held.let_go()
    story = played(core, [(0, ask("next", max_tokens=3, ignore_eos=True))])
    assert len(story["next", 0][0]) == 3


def test_a_slow_grammar_is_not_drawn_for_before_its_mask_is_there(
    engine_plan: EnginePlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matcher, "SLOW_SECONDS", 0.0)
    held, executor = Held(), HashExecutor(200, PADDED)
    core = made(engine_plan, held, executor)
    core.add_request(ask("slow", b"p", grammar=LETTERS))
    while not core.stats().tokens_generated:
        core.step()
    computed = core.stats().tokens_computed
    core.step()
    assert core.stats().tokens_computed == computed
    for _ in range(4):
        held.let_go()
        core.step()
    assert core.stats().tokens_computed == computed + 4
    assert core.stats().tokens_generated == 5
    core.abort(["slow"])
    core.close()


def test_tokens_are_taken_beside_the_interpreter(
    engine_plan: EnginePlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every sequence comes to the same as without the real threads."""
    arrivals = mixed(3)
    expected = played(made(engine_plan, None, **LIMITS), arrivals)
    monkeypatch.setattr(matcher, "SLOW_SECONDS", 0.0)
    same(played(made(engine_plan, None, **LIMITS), arrivals), expected)
