"""Prompts out of a text, and how long continuations are the same."""

from __future__ import annotations

import pytest

from penstock.errors import ConfigError
from penstock.evaluate.agreement import Agreement, cut_prompts


def test_figures() -> None:
    base = [[1, 2, 3, 4]] * 4
    model = [[1, 2, 3, 4], [1, 2, 9, 4], [9, 2, 3, 4], [1, 2, 3, 9]]
    result = Agreement.of(5, model, base)
    assert (result.prompts, result.prompt_tokens, result.tokens) == (4, 5, 4)
    assert result.identical == 0.25
    assert result.same_mean == (4 + 2 + 0 + 3) / 4
    assert (result.same_median, result.same_p10) == (2.5, 0)


def test_prompts_lie_evenly_apart() -> None:
    text = list(range(100))
    assert cut_prompts(text, 4, 3, None) == [[0, 1, 2, 3], [33, 34, 35, 36], [66, 67, 68, 69]]
    assert cut_prompts(text, 4, 2, 777) == [[777, 0, 1, 2], [777, 50, 51, 52]]
    assert len(cut_prompts(text, 30, 50, None)) == 3


@pytest.mark.parametrize(("size", "bos"), [(101, None), (1, 7), (102, 7)])
def test_a_text_too_short_for_a_prompt(size: int, bos: int | None) -> None:
    with pytest.raises(ConfigError, match="give a longer text"):
        cut_prompts(list(range(100)), size, 3, bos)
