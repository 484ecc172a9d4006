"""Heads that draft by the target's hidden states are given the right ones, whatever happens."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.drafted import LIMITS, Play, check_same, mixed, plain_stories, plays, run_core
from support.fake_heads import FakeEagle, FakeMedusa, Truth
from support.oracle import Recorder, Texts
from support.overlapped import POISON, VOCAB
from support.stories import Arrival, same

from penstock.engine.loader import EnginePlan
from penstock.sampling.params import SamplingParams
from penstock.speculate.draft import Proposer
from penstock.speculate.eagle import EagleProposer
from penstock.speculate.medusa import MedusaProposer
from penstock.speculate.tree import Node, independent, likeliest


def eagle(
    head: FakeEagle,
    depth: int = 4,
    width: int = 1,
    max_tokens: int = 64,
    windows: tuple[int | None, ...] = (None,),
) -> EagleProposer:
    return EagleProposer(
        head,
        features=2,
        target_columns=1,
        depth=depth,
        width=width,
        max_tokens=max_tokens,
        windows=windows,
    )


@pytest.mark.slow
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(plays, st.integers(1, 5), st.integers(0, 3), st.sampled_from([None, 0.0, 0.5, 0.9]))
def test_whatever_happens_it_is_the_same(
    engine_plan: EnginePlan, play: Play, depth: int, width: int, quiet: float | None
) -> None:
    def make(texts: Texts) -> Proposer:
        truth = Truth(texts)
        if width == 0:
            return MedusaProposer(FakeMedusa(truth, VOCAB))
        head = FakeEagle(truth, play.num_blocks, VOCAB)
        return eagle(head, depth, width, play.seqs + play.more)

    check_same(engine_plan, play, make, quiet)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("quiet", [None, 0.6])
@pytest.mark.parametrize("kept", [16 << 20, 100])
@pytest.mark.parametrize("width", [1, 3])
def test_what_an_eagle_head_is_given_is_right_under_preemption(
    engine_plan: EnginePlan,
    monkeypatch: pytest.MonkeyPatch,
    width: int,
    kept: int,
    quiet: float | None,
) -> None:
    """Whether it keeps features until it drafts, or must read a part before."""
    monkeypatch.setattr("penstock.speculate.eagle_reading._MOST_PENDING", kept)
    plain, texts, without = plain_stories(engine_plan)
    head = FakeEagle(Truth(texts), 40, VOCAB)
    proposer = eagle(head, width=width)
    stories, stats = run_core(engine_plan, mixed(), proposer, num_blocks=9, quiet=quiet, **LIMITS)
    same(stories, plain)
    assert stats.preemptions > 0
    assert stats.steps < without.steps * (0.6 if quiet is None else 0.9)
    assert stats.drafts is not None
    # Of three on a level one is right; rows at the end of a text are counted as wrong.
    assert head.right > head.rows * (0.9 if width == 1 else 0.3)


def test_a_chain_of_right_drafts_is_accepted_whole(engine_plan: EnginePlan) -> None:
    params = SamplingParams(
        temperature=0.8, seed=4, max_tokens=97, ignore_eos=True, logit_bias={POISON: -100.0}
    )
    listed = [Arrival(0, list(range(3, 40)), params, 0, None, None, False)]
    recorder = Recorder()
    limits = {"max_num_seqs": 2, "max_num_batched_tokens": 20}
    plain, _ = run_core(engine_plan, listed, recorder, **limits)
    truth = Truth(recorder.texts())
    for width in (1, 2):
        head = FakeEagle(truth, 20, VOCAB)
        proposer = eagle(head, depth=3, width=width)
        stories, stats = run_core(engine_plan, listed, proposer, num_tokens=3 * width, **limits)
        same(stories, plain)
        assert stats.drafts is not None
        assert stats.drafts.steps == 24, "three drafts and one token more in each"
    stories, stats = run_core(
        engine_plan, listed, MedusaProposer(FakeMedusa(truth, VOCAB)), 3, **limits
    )
    same(stories, plain)
    assert stats.drafts is not None
    assert stats.drafts.steps == 24


@pytest.mark.parametrize("width", [1, 2])
def test_a_head_with_a_window_gives_blocks_back(engine_plan: EnginePlan, width: int) -> None:
    """A text of 134 tokens goes through a cache of 96: what lies behind the window is free again,
    and nothing that a row sees."""
    params = SamplingParams(
        temperature=0.8, seed=4, max_tokens=97, ignore_eos=True, logit_bias={POISON: -100.0}
    )
    listed = [Arrival(0, list(range(3, 40)), params, 0, None, None, False)]
    recorder = Recorder()
    limits = {"max_num_seqs": 2, "max_num_batched_tokens": 20}
    plain, _ = run_core(engine_plan, listed, recorder, **limits)
    head = FakeEagle(Truth(recorder.texts()), 3, VOCAB, window=20)
    proposer = eagle(head, 3, width, windows=(20,))
    stories, stats = run_core(engine_plan, listed, proposer, num_tokens=3 * width, **limits)
    same(stories, plain)
    assert stats.drafts is not None
    assert stats.drafts.steps == 24, "three drafts and one token more in each"


def test_a_head_whose_cache_is_small_drafts_less_and_breaks_nothing(
    engine_plan: EnginePlan,
) -> None:
    plain, texts, _ = plain_stories(engine_plan)
    for num_blocks in (1, 2, 5):
        head = FakeEagle(Truth(texts), num_blocks, VOCAB)
        stories, _ = run_core(engine_plan, mixed(), eagle(head, width=2), num_blocks=9, **LIMITS)
        same(stories, plain)


def test_the_tree_of_independent_levels_is_the_likeliest() -> None:
    levels = [[(5, -0.1), (6, -2.5)], [(7, -0.2), (8, -1.9)], [(9, -0.5)]]
    tree = independent(levels, 5)
    assert tree is not None
    # 5: -0.1, 57: -0.3, 579: -0.8, 58: -2.0, 6: -2.5 (589 as well, and later)
    assert tree.token_ids.tolist() == [5, 7, 9, 8, 6]
    assert tree.parents == array("i", [-1, 0, 1, 0, -1])
    assert independent([[], levels[0]], 4) is None


@given(st.lists(st.tuples(st.integers(0, 8), st.floats(-3, 0)), min_size=1, max_size=20), st.data())
def test_the_first_of_a_tree_are_its_best(
    steps: list[tuple[int, float]], data: st.DataObject
) -> None:
    nodes: list[Node] = []
    for i, (back, logprob) in enumerate(steps):
        parent = max(i - 1 - back, -1)
        above = nodes[parent].score if parent >= 0 else 0.0
        nodes.append(Node(i, parent, above + logprob))
    most = data.draw(st.integers(1, len(nodes)))
    tree = likeliest(nodes, most)
    chosen = tree.token_ids.tolist()
    rest = [node.score for node in nodes if node.token not in chosen]
    assert len(chosen) == most
    assert all(nodes[token].score >= worse for token in chosen for worse in rest)
    for token, parent in zip(chosen, tree.parents or range(-1, most - 1), strict=True):
        assert nodes[token].parent == (chosen[parent] if parent >= 0 else -1)
