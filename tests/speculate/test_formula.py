"""Tokens a step of drafts that are right with a known probability, against the formula."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import pytest
from support.oracle import Oracle, name
from support.overlapped import make_core

from penstock.engine.loader import EnginePlan
from penstock.interface.host_executor import HostExecutor
from penstock.interface.messages import EngineRequest
from penstock.interface.step import StepInput, StepResult
from penstock.sampling.params import SamplingParams
from penstock.sampling.reference import NumpySampler
from penstock.scheduler.draft import Draft
from penstock.scheduler.sequence import SequenceState
from penstock.speculate.draft import Wanted
from penstock.speculate.speculation import Speculation

VOCAB, LENGTH, REQUESTS = 64, 1500, 8


def said(positions: np.ndarray) -> np.ndarray:
    """What follows each position, whatever stands there."""
    return (positions * 7 + 3) % VOCAB


class Reciter(HostExecutor):
    num_blocks = REQUESTS * (LENGTH // 32 + 2)

    def run(self, step: StepInput) -> StepResult:
        tokens = said(step.positions[step.logit_rows]).astype(np.int32)
        logits = np.zeros((len(tokens), VOCAB), np.float32)
        logits[np.arange(len(tokens)), tokens] = 1.0
        return StepResult(logits, tokens)

    @cached_property
    def sampler(self) -> NumpySampler:
        return NumpySampler()

    def close(self) -> None: ...


class Prompter(Oracle):
    """Knows the recited text."""

    def propose(self, wanted: list[Wanted]) -> list[Draft | None]:  # type: ignore[override]
        for sequence, _ in wanted:
            self._texts.setdefault(name(sequence), _text(sequence))
        return super().propose(wanted)


def _text(sequence: SequenceState) -> list[int]:
    prompt = sequence.token_ids[: sequence.num_prompt_tokens].tolist()
    return prompt + said(np.arange(len(prompt) - 1, LENGTH)).tolist()


@pytest.mark.parametrize(
    ("alpha", "length", "expected"), [(0.7, 4, 2.773), (0.8, 5, 3.689), (0.5, 2, 1.75)]
)
def test_as_the_formula_says(
    engine_plan: EnginePlan, alpha: float, length: int, expected: float
) -> None:
    assert (1 - alpha ** (length + 1)) / (1 - alpha) == pytest.approx(expected, rel=1e-3)
    speculation = Speculation(Prompter({}, VOCAB, alpha, seed=2), length)
    core = make_core(
        engine_plan, Reciter(), speculation, max_model_len=LENGTH, max_num_batched_tokens=64
    )  # type: ignore
    params = SamplingParams(temperature=0, ignore_eos=True)
    outputs: dict[str, list[int]] = {f"{i}": [] for i in range(REQUESTS)}
    for i in outputs:
        core.add_request(EngineRequest(request_id=i, prompt_token_ids=[1], params=params))
    counts: list[int] = []
    while core.has_work:
        for update in core.step():
            outputs[update.request_id] += update.token_ids
            counts.append(len(update.token_ids))
    assert set(map(tuple, outputs.values())) == {tuple(said(np.arange(LENGTH - 1)).tolist())}
    # The first token of each comes without a draft.
    decoded = np.array(counts[REQUESTS:])
    assert decoded.mean() == pytest.approx(expected, rel=0.02)
    drafts = core.stats().drafts
    assert drafts is not None
    assert drafts.accepted_tokens == sum(drafts.accepted_by_position)
    for position, accepted in enumerate(drafts.accepted_by_position, 1):
        assert accepted / drafts.drafts == pytest.approx(alpha**position, abs=0.03)
