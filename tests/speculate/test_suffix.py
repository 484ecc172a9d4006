"""The automaton against a search that looks at every occurrence."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.speculate.suffix import SuffixAutomaton

TEXTS = st.one_of(
    st.lists(st.integers(0, 2), max_size=60),
    st.lists(st.integers(0, 9), max_size=60),
    st.lists(st.integers(0, 1), min_size=1, max_size=4).map(lambda unit: unit * 12),
)


def longest(text: list[int]) -> tuple[int, int]:
    """Length of the longest suffix that occurred before, and where its latest ended."""
    for length in range(len(text) - 1, 0, -1):
        for end in range(len(text) - 1, length - 1, -1):
            if text[end - length : end] == text[len(text) - length :]:
                return length, end
    return 0, 0


@settings(max_examples=300, deadline=None)
@given(TEXTS)
def test_like_a_naive_search(text: list[int]) -> None:
    automaton = SuffixAutomaton(walk=len(text))
    for count, token in enumerate(text, 1):
        automaton.extend([token])
        assert (automaton.match_length, automaton.match_end) == longest(text[:count])


@settings(max_examples=100, deadline=None)
@given(TEXTS, st.integers(0, 2))
def test_a_short_walk_finds_an_occurrence_as_long(text: list[int], walk: int) -> None:
    automaton = SuffixAutomaton(walk=walk)
    for count, token in enumerate(text, 1):
        automaton.extend([token])
        length, end = automaton.match_length, automaton.match_end
        assert length == longest(text[:count])[0]
        assert text[end - length : end] == text[count - length : count]
        assert end < count


@settings(max_examples=200, deadline=None)
@given(TEXTS, TEXTS)
def test_suffixes_of_another_text(text: list[int], query: list[int]) -> None:
    length, end = SuffixAutomaton(text, walk=len(text)).find(query)
    occurs = [
        n
        for n in range(len(query) + 1)
        if any(text[i : i + n] == query[len(query) - n :] for i in range(len(text) - n + 1))
    ]
    assert length == max(occurs)
    assert text[end - length : end] == query[len(query) - length :]


@given(st.lists(st.integers(0, 3), min_size=1, max_size=5), st.integers(2, 5), st.integers(1, 20))
def test_a_repeated_text_goes_on_for_ever(unit: list[int], times: int, count: int) -> None:
    text = unit * times
    following = SuffixAutomaton(text).following(count)
    assert (text + following.tolist())[: len(text) + count] == (unit * (times + count))[
        : len(text) + count
    ]


def test_states_grow_with_the_text_at_most() -> None:
    automaton = SuffixAutomaton([1] * 1000 + [2] + [1] * 1000 + [3])
    assert len(automaton._next) <= 2 * 2002
    assert automaton.match_length == 0
    assert not automaton.following(4)
