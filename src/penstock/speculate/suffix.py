"""A suffix automaton that grows with its text and knows where the text's end occurred before."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from collections.abc import Sequence as Seq
from typing import Protocol

_WALK = 32
"""States above the longest match that are told of its latest occurrence. Ordinary text has four
or five; only periodic text has more, and there it matters little which occurrence is taken."""


class Automaton(Protocol):
    """What :class:`SuffixAutomaton` defines; the native one does the same twenty times as fast."""

    def __init__(self, tokens: array[int] | None = None, walk: int = _WALK) -> None: ...

    def __len__(self) -> int:
        """How many tokens the text has."""
        ...

    @property
    def match_length(self) -> int:
        """Tokens of the longest suffix that occurred before."""
        ...

    @property
    def match_end(self) -> int:
        """How many tokens the text had when that suffix was its end before; 0 without a match."""
        ...

    def extend(self, tokens: array[int]) -> None: ...

    def following(self, count: int) -> array[int]: ...

    def find(self, tokens: array[int]) -> tuple[int, int]: ...

    def slice(self, first: int, end: int) -> array[int]: ...

    @staticmethod
    def follow(
        asked: Seq[tuple[Automaton, array[int], int]], min_match: int, most_read: int
    ) -> list[tuple[int, array[int]] | None]: ...


class SuffixAutomaton:
    """Of the tokens so far, the longest suffix that occurred before, and where.

    A state is a class of substrings that end at the same positions; its link is the longest of
    their suffixes that ends elsewhere too (Blumer et al., "The smallest automaton recognizing the
    subwords of a text", 1985). Appending takes amortized constant time, 1 us in CPython, and
    at most two states. The link of the state of the whole text is the answer.

    ``ends[state]`` is where a string of the state ended last, as far as told: exactly, while states
    have at most ``walk`` links above them, and else some earlier occurrence.
    """

    def __init__(self, tokens: Iterable[int] | None = None, walk: int = _WALK) -> None:
        self.tokens: array[int] = array("i")
        self.match_length = 0
        self.match_end = 0
        self._walk = walk
        self._next: list[dict[int, int]] = [{}]
        self._link: list[int] = [-1]
        self._length: list[int] = [0]
        self._ends: list[int] = [0]
        self._last = 0
        self.extend(tokens or ())

    def __len__(self) -> int:
        return len(self.tokens)

    def extend(self, tokens: Iterable[int]) -> None:
        for token in tokens:
            self._append(token)

    def following(self, count: int) -> array[int]:
        """What came after the match before, ``count`` tokens of it; nothing without a match.

        Where the text ends, what follows it is what was found already: the match repeats itself.
        """
        found = self.tokens[self.match_end : self.match_end + count]
        if not self.match_end:
            return array("i")
        period = len(found)
        while len(found) < count:
            found.append(found[len(found) - period])
        return found

    def slice(self, first: int, end: int) -> array[int]:
        """Tokens of the text; ``end`` may lie behind it."""
        return self.tokens[first:end]

    @staticmethod
    def follow(
        asked: Seq[tuple[Automaton, array[int], int]], min_match: int, most_read: int
    ) -> list[tuple[int, array[int]] | None]:
        """Bring automata up to their texts and say what follows these, of all in one call.

        Each of ``asked`` is an automaton of the first tokens of a text, the text, and how many
        tokens are wanted. The answers are the length of the match and the tokens that follow it;
        None where it is shorter than ``min_match``, or where more than ``most_read`` tokens were
        to be read: these are then, and the others the next time.
        """
        found: list[tuple[int, array[int]] | None] = []
        for automaton, text, count in asked:
            read = len(automaton)
            if read < len(text):
                automaton.extend(text[read : read + most_read])
            length = automaton.match_length
            if len(text) > read + most_read or length < min_match:
                found.append(None)
            else:
                found.append((length, automaton.following(count)))
        return found

    def find(self, tokens: Iterable[int]) -> tuple[int, int]:
        """The longest suffix of ``tokens`` that occurs in the text: its length, and where it ended
        last (as :attr:`match_end` counts). (0, 0) if the last token is new."""
        edges, links, lengths = self._next, self._link, self._length
        state = length = 0
        for token in tokens:
            while state and token not in edges[state]:
                state = links[state]
                length = lengths[state]
            if token in edges[state]:
                state = edges[state][token]
                length += 1
        return (length, self._ends[state]) if length else (0, 0)

    def _append(self, token: int) -> None:
        tokens, edges, links = self.tokens, self._next, self._link
        lengths, ends = self._length, self._ends
        tokens.append(token)
        position = len(tokens)
        new = len(edges)
        edges.append({})
        lengths.append(position)
        ends.append(position)
        links.append(0)
        state = self._last
        while state >= 0 and token not in edges[state]:
            edges[state][token] = new
            state = links[state]
        if state >= 0:
            match = edges[state][token]
            if lengths[match] != lengths[state] + 1:
                match = self._split(state, token, match)
            links[new] = match
        self._last = new
        match = links[new]
        self.match_length = lengths[match]
        self.match_end = ends[match] if match else 0
        for _ in range(self._walk):
            if match <= 0:
                break
            ends[match] = position
            match = links[match]

    def _split(self, state: int, token: int, long: int) -> int:
        """Make a state of those strings of ``long`` that ``state`` and ``token`` spell."""
        edges, links = self._next, self._link
        short = len(edges)
        edges.append(edges[long].copy())
        self._length.append(self._length[state] + 1)
        self._ends.append(self._ends[long])
        links.append(links[long])
        links[long] = short
        while state >= 0 and edges[state].get(token) == long:
            edges[state][token] = short
            state = links[state]
        return short
