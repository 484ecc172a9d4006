"""Finding stop strings in text that arrives in pieces."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StopMatch:
    """A stop string was found."""

    stop: str
    end: int  # characters of the text just fed, up to the last one of the stop string


class StopStrings:
    """The automaton of a request's stop strings (Aho and Corasick, 1975).

    Built in time linear in the total length of ``stops``; shared by a request's sequences.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self.next: list[dict[str, int]] = [{}]
        self.depth = [0]
        self.found: list[str | None] = [None]
        for stop in stops:
            state = 0
            for char in stop:
                state = self.next[state].setdefault(char, len(self.next))
                if state == len(self.next):
                    self.next.append({})
                    self.depth.append(0)
                    self.found.append(None)
            self.found[state] = stop
        self._link()

    def _link(self) -> None:
        self.fail = [0] * len(self.next)
        queue = deque([0])
        while queue:
            state = queue.popleft()
            for char, child in self.next[state].items():
                self.depth[child] = self.depth[state] + 1
                if state:
                    fallback = self.fail[state]
                    while fallback and char not in self.next[fallback]:
                        fallback = self.fail[fallback]
                    self.fail[child] = self.next[fallback].get(char, 0)
                if self.found[child] is None:
                    self.found[child] = self.found[self.fail[child]]
                queue.append(child)


class StopSearch:
    """The state of one text. Feed it; it says what is safe to show.

    The stop string that is complete first ends the text; of several that are complete at the
    same character, the longest. So the result does not depend on how the text was cut.
    """

    def __init__(self, strings: StopStrings) -> None:
        self._strings = strings
        self._state = 0

    def feed(self, text: str) -> StopMatch | None:
        """Search on; after a match the search is over."""
        strings, state = self._strings, self._state
        for position, char in enumerate(text, 1):
            while state and char not in strings.next[state]:
                state = strings.fail[state]
            state = strings.next[state].get(char, 0)
            stop = strings.found[state]
            if stop is not None:
                return StopMatch(stop, position)
        self._state = state
        return None

    @property
    def undecided(self) -> int:
        """Number of last characters that may be the beginning of a stop string."""
        return self._strings.depth[self._state]
