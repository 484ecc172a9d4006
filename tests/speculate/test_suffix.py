"""The automaton against a search that looks at every occurrence."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.needs import native_module, needs_native

from penstock.backends.cpu import native
from penstock.interface.automaton import Automaton
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


@pytest.fixture(scope="module", params=native.runnable())
def compiled(request: pytest.FixtureRequest) -> type[Automaton]:
    automaton: type[Automaton] = native_module(request.param).SuffixAutomaton
    return automaton


@pytest.mark.thinned(2)
@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.one_of(TEXTS, st.lists(st.integers(-(2**31), 2**31 - 1), max_size=60)), max_size=4),
    st.integers(0, 40),
    TEXTS,
)
def test_native_code_says_the_same(
    compiled: type[Automaton], parts: list[list[int]], walk: int, query: list[int]
) -> None:
    defined, made = SuffixAutomaton(walk=walk), compiled(walk=walk)
    for part in parts:
        for token in part:
            defined.extend([token])
            made.extend(array("i", [token]))
            assert made.match_length == defined.match_length
            assert made.match_end == defined.match_end
        assert made.following(9) == defined.following(9)
        for end in range(len(query) + 1):
            assert made.find(array("i", query[:end])) == defined.find(query[:end])
    assert len(made) == len(defined)
    assert made.slice(1, 7) == defined.slice(1, 7)
    assert made.slice(5, 10_000) == defined.slice(5, 10_000)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(st.lists(TEXTS, min_size=3, max_size=3), st.integers(0, 9)),
        min_size=1,
        max_size=4,
    ),
    st.integers(1, 4),
    st.integers(1, 50),
)
def test_native_code_follows_many_alike(
    compiled: type[Automaton],
    sequences: list[tuple[list[list[int]], int]],
    min_match: int,
    most_read: int,
) -> None:
    defined = [SuffixAutomaton() for _ in sequences]
    made = [compiled() for _ in sequences]
    texts = [array("i") for _ in sequences]
    for step in range(3):
        for text, (parts, _) in zip(texts, sequences, strict=True):
            text.extend(parts[step])
        wanted = [most for _, most in sequences]
        expected = SuffixAutomaton.follow(
            list(zip(defined, texts, wanted, strict=True)), min_match, most_read
        )
        found = compiled.follow(list(zip(made, texts, wanted, strict=True)), min_match, most_read)
        assert found == expected
        assert [len(each) for each in made] == [len(each) for each in defined]


def test_native_code_on_a_long_text(compiled: type[Automaton]) -> None:
    text = array("i", [i * i % 97 if i % 1000 < 900 else i for i in range(20_000)])
    made, defined = compiled(text), SuffixAutomaton(text)
    assert (made.match_length, made.match_end) == (defined.match_length, defined.match_end)
    assert made.following(50) == defined.following(50)
    assert made.find(text[3000:3050]) == defined.find(text[3000:3050])


@pytest.mark.parametrize("tokens", [array("q", [1]), array("I", [1]), b"abcd"])
def test_native_code_refuses_what_are_no_tokens(compiled: type[Automaton], tokens: object) -> None:
    with pytest.raises(ValueError, match="32-bit"):
        compiled().extend(tokens)  # type: ignore[arg-type]


@needs_native
def test_the_native_one_takes_what_it_is_asked_for_and_nothing_else() -> None:
    made = native.load().SuffixAutomaton
    automaton, text = made(), array("i", [1, 2, 1, 2])
    # A number of tokens to read, and those that were, may sum to more than any number.
    automaton.extend(text[:1])
    assert made.follow([(automaton, text, 3)], 1, 2**64 - 1) == [(2, array("i", [1, 2, 1]))]
    for item in ((), (automaton,), (automaton, text), (automaton, text, 3, 4)):
        with pytest.raises(ValueError, match="an automaton, its text and a count"):
            made.follow([item], 1, 9)
    for wrong in (
        array("I", [1]),
        array("q", [1]),
        b"1234",
        memoryview(b"12345678").cast("i", [2, 1]),
    ):
        with pytest.raises(ValueError, match="32-bit integers"):
            automaton.extend(wrong)
    assert automaton.following(0) == array("i")
