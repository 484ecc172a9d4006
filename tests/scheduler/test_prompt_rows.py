"""Prompts whose rows of logits are wanted."""

from __future__ import annotations

import random
from typing import Any

import pytest
from support.scheduler_loop import VOCAB, check_complete, make_loop, request


@pytest.mark.thinned(3)
@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("prompt_rows", [1, 3, 8])
def test_prompts_that_want_logits_take_more_steps(prompt_rows: int, ahead: bool) -> None:
    """A step has no more rows of logits than there is room for, and all get what they get alone."""
    for seed in range(12):
        rng = random.Random(seed)
        loop = make_loop(num_blocks=24, ahead=ahead, prompt_rows=prompt_rows)
        schedule, most = loop.scheduler.schedule, 0

        def watched(schedule: Any = schedule) -> Any:
            nonlocal most
            step = schedule()
            if step is not None:
                reported = sum(each.num_logits for each in step.sequences)
                assert reported == step.num_logits
                most = max(most, step.num_logits)
            return step

        loop.scheduler.schedule = watched  # type: ignore[method-assign]
        leaders = []
        for i in range(9):
            prompt = [rng.randrange(8, VOCAB) for _ in range(rng.randrange(1, 40))]
            wants = rng.choice([None, 0, 2])
            leaders.append(request(f"r{i}", prompt, prompt_logprobs=wants, n=rng.choice([1, 1, 2])))
        for leader in leaders:
            loop.scheduler.add(leader)
            if rng.random() < 0.5:
                loop.step()
        loop.run()
        check_complete(loop, leaders)
        assert 0 < most <= 4 + prompt_rows
