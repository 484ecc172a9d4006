"""Rows of logits and sampling options of every kind, for tests of one sampler against another."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from hypothesis import strategies as st

from penstock.grammar.spec import GrammarSpec
from penstock.interface.mask import TokenMask, mask_of
from penstock.sampling.params import SamplingParams


@st.composite
def rows(draw: st.DrawFn, vocab: int, count: int) -> np.ndarray:
    """Rows of every kind: rough and smooth, ties, all equal, partly or wholly masked, broken."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    scale = draw(st.sampled_from([0.0, 0.1, 1.0, 3.0, 10.0, 100.0, 1e30]))
    logits = rng.standard_normal((count, vocab)) * scale
    kind = draw(st.sampled_from(["plain", "ties", "masked", "broken", "masked but one"]))
    if kind == "ties":
        logits = np.round(logits)
    elif kind == "masked":
        logits[rng.random(logits.shape) < 0.4] = -np.inf
    elif kind == "masked but one":
        logits[:, np.arange(vocab) != rng.integers(vocab)] = -np.inf
    elif kind == "broken":
        bad = [np.nan, np.inf, -np.inf]
        for row in logits[::2]:
            row[rng.integers(vocab)] = bad[rng.integers(3)]
        logits[-1] = bad[rng.integers(3)]
    return logits.astype(np.float32)


@st.composite
def options(draw: st.DrawFn, vocab: int) -> SamplingParams:
    def pick(*values: Any) -> Any:
        return draw(st.sampled_from(values))

    token = st.integers(0, vocab - 1)
    return SamplingParams(
        temperature=pick(0.0, 1e-300, 1e-6, 0.3, 0.7, 1.0, 1.5, 100.0, 1e4),
        top_k=pick(0, 0, -1, 1, 2, 5, 40, max(vocab - 1, 0), vocab, vocab + 1, 10**12),
        top_p=pick(1.0, 1.0, 1e-9, 0.01, 0.5, 0.9, 0.999, 1 - 1e-12),
        min_p=pick(0.0, 0.0, 1e-13, 0.05, 0.5, 1.0),
        repetition_penalty=pick(1.0, 1.0, 1.3, 0.5, 1e-40),
        frequency_penalty=pick(0.0, 0.0, 0.7, -2.0),
        presence_penalty=pick(0.0, 0.0, 1.5),
        repeat_last_n=pick(None, None, -1, 0, 1, 2, 7, 10**12),
        min_tokens=pick(0, 0, 3, 100),
        logprobs=pick(None, 0, 1, 5, 20),
        logit_bias=draw(st.none() | st.dictionaries(token, st.floats(-100, 100), max_size=4)),
        stop_token_ids=tuple(draw(st.lists(token, max_size=3))),
    )


@st.composite
def masks(draw: st.DrawFn, vocab: int, count: int) -> list[TokenMask | None]:
    """What grammars allow of rows: most or few tokens, one, none; or there is no grammar."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    found: list[TokenMask | None] = []
    for _ in range(count):
        share = draw(st.sampled_from([None, None, 0.0, 0.02, 0.5, 0.98, 1.0, -1.0]))
        if share is None:
            found.append(None)
        elif share < 0:  # one
            found.append(mask_of(np.arange(vocab) == rng.integers(vocab)))
        else:
            found.append(mask_of(rng.random(vocab) < share))
    return found


def constrained(
    params: list[SamplingParams], masks: list[TokenMask | None]
) -> list[SamplingParams]:
    """Options that say which rows have a grammar."""
    return [
        each if mask is None else msgspec.structs.replace(each, grammar=ANY_GRAMMAR)
        for each, mask in zip(params, masks, strict=True)
    ]


ANY_GRAMMAR = GrammarSpec(kind="json_object")
"""Samplers only look whether there is one."""
