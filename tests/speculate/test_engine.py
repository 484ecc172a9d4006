"""With drafts, right or wrong, everything comes out as without them."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.drafted import LIMITS, Fickle, Play, check_same, mixed, plain_stories, plays, run_core
from support.oracle import Oracle, Recorder, Texts
from support.overlap_executor import Deferred, HashExecutor
from support.overlapped import POISON, VOCAB, check, make_core, windowed
from support.stories import Arrival, Stories, play, same

from penstock.cache.geometry import Chunk, Window
from penstock.engine.loader import EnginePlan
from penstock.interface.messages import EngineRequest, EngineStats, FinishReason
from penstock.sampling.params import SamplingParams
from penstock.scheduler.accepted_drafts import AcceptedDrafts
from penstock.scheduler.draft import Draft, draft_tree
from penstock.scheduler.output import ScheduledSequence
from penstock.speculate.draft import Proposer, Wanted
from penstock.speculate.ngram import NgramProposer
from penstock.speculate.speculation import Speculation
from penstock.speculative_config import Ngram


@pytest.mark.slow
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    plays,
    st.sampled_from([0.0, 0.7, 0.95, 1.0]),
    st.sampled_from(["chains", "trees", "ngram"]),
    st.sampled_from([None, 0.0, 0.5, 0.9]),
    st.sampled_from(
        [
            (None, None),
            (None, None),
            (None, 33),
            (40, 40),
            (50, 3),
            (None, Chunk(40)),
            (Chunk(33), 9),
        ]
    ),
)
def test_whatever_happens_it_is_the_same(
    engine_plan: EnginePlan,
    play: Play,
    right: float,
    kind: str,
    quiet: float | None,
    windows: tuple[Window | None, Window | None],
) -> None:
    def make(texts: Texts) -> Proposer:
        if kind == "ngram":
            return NgramProposer(Ngram(min_match=1, shared_tokens=1024))
        return Oracle(texts, VOCAB, right, branching=kind == "trees")

    check_same(windowed(engine_plan, windows), play, make, quiet)


@pytest.mark.parametrize("branching", [False, True])
def test_preempted_requests_of_every_kind(engine_plan: EnginePlan, branching: bool) -> None:
    plain, texts, without = plain_stories(engine_plan)
    oracle = Oracle(texts, VOCAB, 0.9, branching=branching)
    stories, stats = run_core(engine_plan, mixed(), oracle, num_blocks=9, **LIMITS)
    same(stories, plain)
    assert stats.preemptions > 0
    assert stats.steps < without.steps * (0.8 if branching else 0.7)


def test_paths_that_are_not_moved_would_be_noticed(
    engine_plan: EnginePlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, texts, _ = plain_stories(engine_plan)
    monkeypatch.setattr("penstock.scheduler.accepted_drafts.moves_of", lambda *_: [])
    oracle = Oracle(texts, VOCAB, 0.9, branching=True)
    with pytest.raises(AssertionError):
        run_core(engine_plan, mixed(), oracle, num_blocks=9, **LIMITS)


def test_published_drafts_would_be_noticed(
    engine_plan: EnginePlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Were what a step wrote for drafts counted as computed, the checks of the other tests fail."""
    _, texts, _ = plain_stories(engine_plan)
    taken = AcceptedDrafts.take_in

    def counts_all(self: AcceptedDrafts, each: ScheduledSequence, tokens: list[int]) -> list[int]:
        draft, table = each.draft, each.sequence.table
        assert draft is not None
        known = each.sequence.token_ids
        self._cache.commit(table, known + draft.token_ids, each.start + each.num_tokens)
        return taken(self, each, tokens)

    monkeypatch.setattr(AcceptedDrafts, "take_in", counts_all)
    with pytest.raises(AssertionError):
        run_core(engine_plan, mixed(), Oracle(texts, VOCAB, 0.5), num_blocks=9, **LIMITS)


def one(
    engine_plan: EnginePlan, proposer: Proposer, params: SamplingParams, **limits: int
) -> tuple[Stories, EngineStats]:
    listed = [Arrival(0, [3, 4, 5], params, 0, None, None, False)]
    return run_core(engine_plan, listed, proposer, **limits)


def test_tokens_a_step_of_drafts_that_are_all_right(engine_plan: EnginePlan) -> None:
    params = SamplingParams(temperature=0, max_tokens=41, ignore_eos=True, logit_bias={63: -100})
    recorder = Recorder()
    plain, _ = one(engine_plan, recorder, params)
    stories, stats = one(engine_plan, Oracle(recorder.texts(), VOCAB, 1.0), params)
    same(stories, plain)
    assert stats.steps == 1 + 40 // 5
    assert stats.tokens_generated == 41


def test_drafts_take_what_is_left_of_the_budget(engine_plan: EnginePlan) -> None:
    params = SamplingParams(temperature=0, max_tokens=41, ignore_eos=True, logit_bias={63: -100})
    recorder = Recorder()
    limits = {"max_num_seqs": 1, "max_num_batched_tokens": 3}
    plain, _ = one(engine_plan, recorder, params, **limits)
    stories, stats = one(engine_plan, Oracle(recorder.texts(), VOCAB, 1.0), params, **limits)
    same(stories, plain)
    assert stats.steps == 1 + -(-40 // 3)


def test_a_stop_token_among_accepted_drafts_is_the_end(engine_plan: EnginePlan) -> None:
    params = SamplingParams(temperature=0, max_tokens=41, ignore_eos=True, logit_bias={63: -100})
    recorder = Recorder()
    one(engine_plan, recorder, params)
    (text,) = recorder.texts().values()
    stop = text[3 + 7]
    params = SamplingParams(
        temperature=0, max_tokens=41, stop_token_ids=(stop,), logit_bias={63: -100}, logprobs=1
    )
    stories, _ = one(engine_plan, Oracle(recorder.texts(), VOCAB, 1.0), params)
    story = stories["0", 0, 0]
    assert story.end == (FinishReason.STOP, stop, None)
    assert story.tokens == text[3 : 3 + text[3:].index(stop) + 1]
    assert [entry.token_id for entry in story.logprobs] == story.tokens


def test_what_was_drafted_is_counted(engine_plan: EnginePlan) -> None:
    params = SamplingParams(temperature=0, max_tokens=21, ignore_eos=True, logit_bias={63: -100})
    recorder = Recorder()
    one(engine_plan, recorder, params)
    executor = HashExecutor(30, VOCAB, POISON)
    wrong = Oracle(recorder.texts(), VOCAB, 0.0)
    core = make_core(engine_plan, executor, Speculation(wrong, 4))
    core.add_request(EngineRequest(request_id="a", prompt_token_ids=[3, 4, 5], params=params))
    core.step()
    (sequence,) = core._scheduler.running
    while core.has_work:
        core.step()
    assert sequence.num_accepted == 0
    assert sequence.num_drafted == 4 * 15 + 4 + 3 + 2 + 1 + 0


class Late(Oracle):
    """Has nothing to say for the first ``quiet`` steps."""

    quiet = 100
    asked = 0

    def propose(self, wanted: Sequence[Wanted]) -> list[Draft | None]:
        self.asked += 1
        known = len(wanted[0].sequence.token_ids)
        return [None] * len(wanted) if known < self.quiet else super().propose(wanted)


def test_who_never_drafts_is_seldom_asked(engine_plan: EnginePlan) -> None:
    params = SamplingParams(temperature=0, max_tokens=140, ignore_eos=True, logit_bias={63: -100})
    listed = [Arrival(0, [3, 4, 5], params, 0, None, None, False)]
    recorder = Recorder()
    plain, _ = run_core(engine_plan, listed, recorder)
    proposer = Late(recorder.texts(), VOCAB, 1.0)
    proposer.cheap = True
    executor = HashExecutor(30, VOCAB, POISON)
    # Every step takes as long, and asking takes no time.
    speculation = Speculation(proposer, 4, True, lambda: float(core.stats().steps))
    core = make_core(engine_plan, executor, speculation)
    same(play(core, listed, lambda: check(core, executor)), plain)
    assert proposer.asked < 16 + 84 // 4 + 2 + 43
    assert core.stats().drafts.accepted_tokens > 10  # type: ignore[union-attr]


def test_no_step_is_scheduled_behind_one_with_drafts(engine_plan: EnginePlan) -> None:
    """Nor before what is in flight is taken in, where the proposer always has something to say."""
    plain, texts, _ = plain_stories(engine_plan)
    inner = HashExecutor(9, VOCAB, POISON)
    executor = Deferred(inner)
    core = make_core(engine_plan, executor, Speculation(Oracle(texts, VOCAB, 0.9), 4), **LIMITS)
    same(play(core, mixed(), lambda: check(core, inner)), plain)
    assert executor.verified > 10
    assert core.stats().drafts.accepted_tokens > 0  # type: ignore[union-attr]


@pytest.mark.parametrize("adaptive", [False, True])
def test_steps_overlap_while_nothing_is_drafted(engine_plan: EnginePlan, adaptive: bool) -> None:
    """A text without repetition, of which n-grams have nothing to say."""
    params = SamplingParams(temperature=1.5, seed=2, max_tokens=140, ignore_eos=True)
    params = msgspec.structs.replace(params, logit_bias={POISON: -100.0})
    listed = [Arrival(0, [3, 4, 5], params, 0, None, None, False)]
    plain, _ = run_core(engine_plan, listed, Recorder())
    inner = HashExecutor(30, VOCAB, POISON)
    executor = Deferred(inner)
    speculation = Speculation(
        NgramProposer(Ngram(min_match=4)), 4, adaptive, lambda: float(executor.submissions)
    )
    core = make_core(engine_plan, executor, speculation)
    same(play(core, listed, lambda: check(core, inner)), plain)
    assert executor.verified == 0
    assert executor.submissions == 140
    # Behind every step but the first, those before which it was asked, and where it was thought
    # worth asking.
    assert executor.behind > 70


def test_steps_overlap_while_the_controller_is_off(engine_plan: EnginePlan) -> None:
    """Drafts are always wrong, and a step takes as long as it has rows."""
    params = SamplingParams(temperature=0, max_tokens=140, ignore_eos=True, logit_bias={63: -100})
    listed = [Arrival(0, [3, 4, 5], params, 0, None, None, False)]
    recorder = Recorder()
    plain, _ = run_core(engine_plan, listed, recorder)
    inner = HashExecutor(30, VOCAB, POISON)
    executor = Deferred(inner)
    speculation = Speculation(
        Oracle(recorder.texts(), VOCAB, 0.0), 4, True, lambda: float(inner.rows_run)
    )
    core = make_core(engine_plan, executor, speculation)
    same(play(core, listed, lambda: check(core, inner)), plain)
    assert executor.behind > 70


def test_placeholders_of_a_request_that_is_aborted_are_not_drafted(engine_plan: EnginePlan) -> None:
    """What others said is remembered, as far as it is known."""
    proposer = NgramProposer(Ngram(min_match=1, shared_tokens=1024))
    core = make_core(engine_plan, Deferred(HashExecutor(30, VOCAB)), Fickle(proposer, 4, 1.0))
    params = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
    core.add_request(EngineRequest(request_id="a", prompt_token_ids=[3, 4, 5], params=params))
    (sequence,) = core._scheduler._queues.requests["a"]
    proposer.propose([Wanted(sequence, 1)])
    for _ in range(6):
        core.step()
    assert sequence.token_ids[-1] < 0
    core.abort(["a"])
    assert min(sequence.token_ids) >= 0
    assert len(sequence.token_ids) == 3 + 5
    while core.has_work:
        core.step()
    proposer.propose([])
    assert min(proposer._shared._text.slice(0, 7)) >= 0  # type: ignore[union-attr]


def test_a_draft_is_cut_from_behind() -> None:
    draft = Draft(array("i", [1, 2, 3]), 2)
    assert draft.cut(2) == Draft(array("i", [1, 2]), 2)
    assert draft.cut(3) is draft
    assert draft.path([1, 2, 9]) == [0, 1]


def test_a_draft_tree() -> None:
    parents = array("i", [-1, 0, -1, 2, 0])
    tree = draft_tree(array("i", [5, 6, 7, 6, 8]), parents, 1)
    assert tree.path([5, 8, 1]) == [0, 4]
    assert tree.path([7, 6]) == [2, 3]
    assert tree.path([6]) == []
    assert tree.cut(3).parents == parents[:3]
    assert tree.cut(2) == Draft(array("i", [5, 6]), 1), "a chain has no parents"
    assert tree.cut(5) is tree


def test_a_sequence_that_ends_as_another_of_its_request_fails_is_reported(
    engine_plan: EnginePlan,
) -> None:
    """Sequences come with drafts or without: both happen in one step."""

    def request(seed: int, max_tokens: int) -> list[Arrival]:
        params = SamplingParams(seed=seed, max_tokens=max_tokens, n=2, ignore_eos=True)
        return [Arrival(0, [3, 4, 5], params, 0, None, None, False)]

    for seed in range(200):
        first, second = (
            s.tokens for s in run_core(engine_plan, request(seed, 40), Recorder())[0].values()
        )
        if first[-1] == POISON and len(first) > 2 and POISON not in second:
            break
    else:
        raise AssertionError("no such seed")
    recorder = Recorder()
    failed, ended = run_core(engine_plan, request(seed, len(first) + 1), recorder)[0].values()
    assert failed.ended(FinishReason.ERROR)
    assert ended.ended(FinishReason.LENGTH)
    assert ended.tokens[:-1] == second
    drafting = Oracle(recorder.texts(), VOCAB, 1.0)
    for story in run_core(engine_plan, request(seed, len(first) + 1), drafting)[0].values():
        assert story.ended(FinishReason.ERROR, FinishReason.LENGTH)
