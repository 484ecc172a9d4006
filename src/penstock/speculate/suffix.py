"""A suffix automaton that finds the longest suffix of a growing text that occurred before."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence

from penstock.interface.automaton import WALK, Automaton


class SuffixAutomaton:
    """Finds the longest suffix of the text that occurred before, and where.

    A state is a class of substrings that end at the same positions; its link is the longest of
    their suffixes that ends elsewhere too (Blumer et al., "The smallest automaton recognizing the
    subwords of a text", 1985). Appending takes amortized constant time, 1 us in CPython, and
    at most two states. The link of the state of the whole text is the answer.

    The end of a state is that of the latest occurrence of its strings as long as it has at most
    ``walk`` suffix links above it, and else that of some earlier one.
    """

    def __init__(self, tokens: Iterable[int] | None = None, walk: int = WALK) -> None:
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
        """Append tokens to the text."""
        for token in tokens:
            self._append(token)

    def following(self, count: int) -> array[int]:
        """Return ``count`` tokens that followed the match; none without a match.

        Where the text ends before that, the tokens found so far are repeated.
        """
        found = self.tokens[self.match_end : self.match_end + count]
        if not self.match_end:
            return array("i")
        period = len(found)
        while len(found) < count:
            found.append(found[len(found) - period])
        return found

    def slice(self, first: int, end: int) -> array[int]:
        """Return the text's tokens from ``first`` up to ``end``, or to its own end."""
        return self.tokens[first:end]

    @staticmethod
    def follow(
        asked: Sequence[tuple[Automaton, array[int], int]], min_match: int, most_read: int
    ) -> list[tuple[int, array[int]] | None]:
        """Extend automata to the ends of their texts and return what may follow each.

        Each of ``asked`` is an automaton of the first tokens of a text, the text, and the number of
        tokens wanted. An answer is the length of the match and the tokens that followed it; None if
        the match is shorter than ``min_match``, or if the automaton still lacks tokens after it
        was extended by ``most_read``.
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
        """Return the length and end of the longest suffix of ``tokens`` in the text.

        The end is counted as ``match_end`` is. (0, 0) if the last token does not occur.
        """
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
        """Split off the strings of state ``long`` that ``state`` followed by ``token`` spells."""
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
