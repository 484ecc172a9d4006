"""The choice of beams, beside all texts that there could be."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.sampling.beam_search import Beam, Beams, BeamSearch

VOCAB, END = 4, 0


class Chain:
    """A model whose next token depends on the last one: a table of log-probabilities."""

    def __init__(self, seed: int) -> None:
        drawn = np.random.default_rng(seed).normal(size=(VOCAB + 1, VOCAB)) * 2
        self.table = drawn - np.log(np.exp(drawn).sum(1, keepdims=True))

    def row(self, last: int) -> list[tuple[int, float]]:
        """The likeliest tokens behind ``last``, of which ``VOCAB`` is the prompt."""
        row = self.table[last]
        return [(int(t), float(row[t])) for t in np.argsort(-row)]

    def total(self, text: tuple[int, ...]) -> float:
        return math.fsum(self.table[a][b] for a, b in itertools.pairwise((VOCAB, *text)))


def searched(chain: Chain, search: BeamSearch, min_tokens: int, most: int) -> list[Beam]:
    beams = Beams(search, {END}, min_tokens, most)
    rows = [chain.row(VOCAB)]
    while picks := beams.advance(rows):
        assert beams.num_running == len(picks)
        rows = [chain.row(pick.token_id) for pick in picks]
    assert beams.over
    return beams.finished


def text(beam: Beam) -> tuple[int, ...]:
    return tuple(token.token_id for token in beam.tokens)


@given(st.integers(0, 10**6), st.integers(0, 2), st.floats(0.5, 2.0))
def test_as_many_beams_as_texts_find_the_best_of_all(
    seed: int, min_tokens: int, penalty: float
) -> None:
    chain, most = Chain(seed), 3
    every = [
        text
        for length in range(1, most + 1)
        for text in itertools.product(range(VOCAB), repeat=length)
        if END not in text[:-1]
        and (text[-1] == END or length == most)
        and not (text[-1] == END and length <= min_tokens)
    ]
    best = sorted(every, key=lambda t: -chain.total(t) / len(t) ** penalty)
    found = searched(chain, BeamSearch(width=32, length_penalty=penalty), min_tokens, most)
    assert text(found[0]) == best[0]
    assert [text(beam) for beam in found] == best[: len(found)]
    for beam in found:
        assert beam.total == pytest.approx(chain.total(text(beam)))
        assert all(t.top[t.rank - 1] == (t.token_id, t.logprob) for t in beam.tokens)


@given(st.integers(0, 10**6), st.integers(1, 3), st.booleans())
def test_finished_beams_are_whole_and_in_order(seed: int, width: int, early: bool) -> None:
    chain = Chain(seed)
    found = searched(chain, BeamSearch(width=width, early_stopping=early), 0, 12)
    assert len(found) == width
    scores = [beam.total / beam.length for beam in found]
    assert scores == sorted(scores, reverse=True)
    for beam in found:
        assert END not in text(beam)[:-1]
        assert text(beam)[-1] == END or beam.length == 12
