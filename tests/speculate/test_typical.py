"""Typical acceptance: which drafts pass, and for whom."""

from __future__ import annotations

from array import array

import msgspec
import numpy as np
import pytest
from support.drafted import run_core
from support.oracle import Oracle, Recorder
from support.overlapped import POISON, VOCAB
from support.stories import Arrival, same

from penstock.engine.loader import EnginePlan
from penstock.sampling.params import SamplingParams
from penstock.scheduler.draft import Draft, draft_tree
from penstock.speculate.typical import Typical

MEDUSAS = Typical(0.3, 0.09)


def logits(*probabilities: float) -> np.ndarray:
    return np.log(np.array(probabilities)).astype(np.float32)


def test_a_draft_passes_that_is_likely_enough() -> None:
    sure = logits(0.85, 0.1, 0.05)  # entropy 0.52: above min(0.3, 0.09 * 0.60 = 0.054)
    chains = [Draft(array("i", [token])) for token in range(3)]
    assert [MEDUSAS.passing(sure, 1.0, chain, -1) for chain in chains] == [0, 1, -1]
    flat = logits(*[0.01] * 100)  # entropy 4.6: above 0.09 / 100
    assert MEDUSAS.passing(flat, 1.0, Draft(array("i", [70])), -1) == 70
    cold = MEDUSAS.passing(sure, 0.2, chains[1], -1)
    assert cold == -1, "at a low temperature the second is 5e-5 likely"


def test_the_likeliest_of_siblings_is_taken() -> None:
    tree = draft_tree(array("i", [2, 1, 0]), array("i", [-1, -1, 0]))
    assert MEDUSAS.passing(logits(0.2, 0.5, 0.3), 1.0, tree, -1) == 1
    assert MEDUSAS.passing(logits(0.2, 0.5, 0.3), 1.0, tree, 0) == 0
    assert MEDUSAS.passing(logits(0.2, 0.5, 0.3), 1.0, tree, 1) == -1, "nothing follows it"


@pytest.mark.parametrize(
    "changes",
    [
        {"temperature": 0.0},
        {"top_p": 0.9},
        {"top_k": 5},
        {"frequency_penalty": 0.5},
        {"logit_bias": {3: 1.0}},
        {"min_tokens": 3},
        {"logprobs": 2},
    ],
)
def test_it_does_not_apply_where_more_was_asked_for(
    engine_plan: EnginePlan, changes: dict[str, object]
) -> None:
    plain = SamplingParams(temperature=0.9, max_tokens=60, seed=3, ignore_eos=True)
    params = msgspec.structs.replace(plain, **changes)
    assert MEDUSAS.applies_to(plain)
    assert not MEDUSAS.applies_to(params)
    listed = [Arrival(0, [3, 4, 5], params, 0, None, None, False)]
    recorder = Recorder()
    expected, _ = run_core(engine_plan, listed, recorder)
    oracle = Oracle(recorder.texts(), VOCAB, 0.6)
    same(run_core(engine_plan, listed, oracle, typical=Typical(1e-9, 1e-9))[0], expected)


def test_more_is_accepted(engine_plan: EnginePlan) -> None:
    """Every draft passes a bound of nothing, so that each step brings all of it."""
    params = SamplingParams(temperature=0.9, max_tokens=60, seed=5, ignore_eos=True)
    listed = [Arrival(0, [3, 4, 5], params, 0, None, None, False)]
    recorder = Recorder()
    expected, _ = run_core(engine_plan, listed, recorder)
    oracle = Oracle(recorder.texts(), POISON, 0.5)
    exact, strict = run_core(engine_plan, listed, oracle, typical=None)
    same(exact, expected)
    oracle = Oracle(recorder.texts(), POISON, 0.5)
    stories, loose = run_core(engine_plan, listed, oracle, typical=Typical(1e-9, 1e-9))
    assert strict.drafts is not None
    assert loose.drafts is not None
    assert strict.drafts.rejections > 0
    assert loose.drafts.rejections == 0
    (story,) = stories.values()
    assert len(story.tokens) == 60
