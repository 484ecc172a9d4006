"""Workloads that are drawn: conversations of random text, without end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from penstock.bench.load.sizes import Sizes
from penstock.bench.load.turn import Conversation, Piece, Turn, chain
from penstock.workload.patterns import Patterns

_PREFIX, _OWN, _LENGTHS = 1, 2, 3
"""First numbers of the keys of shared prefixes, of other text, and of what draws lengths."""


class Workload(Protocol):
    """Who asks what."""

    @property
    def name(self) -> str:
        """What a document calls it."""

    @property
    def endless(self) -> bool:
        """Whether there are as many conversations as are wanted."""

    def conversations(self, seed: int) -> Iterator[Conversation]:
        """The conversations, in the order in which they begin; of the same lengths for the same
        seed."""

    def described(self) -> dict[str, object]:
        """All that is needed to make it again."""


@dataclass(frozen=True)
class RandomWorkload:
    """Requests of random text, of which ``prefixes`` beginnings of ``prefix_tokens`` are shared.

    Each request has one of these, drawn evenly, before its own ``input_tokens``.
    """

    input_tokens: Sizes
    output_tokens: Sizes
    prefix_tokens: int = 0
    prefixes: int = 1
    endless: bool = field(default=True, init=False)

    @property
    def name(self) -> str:
        return "prefix" if self.prefix_tokens else "random"

    def conversations(self, seed: int) -> Iterator[Conversation]:
        generator = np.random.default_rng([seed, _LENGTHS])
        index = 0
        while True:
            content: tuple[Piece | str, ...] = ()
            if self.prefix_tokens:
                which = int(generator.integers(self.prefixes))
                content = (Piece((_PREFIX, which), self.prefix_tokens),)
            own = Piece((_OWN, index), self.input_tokens.draw(generator))
            turn = Turn((*content, own), self.output_tokens.draw(generator))
            yield Conversation(str(index), (turn,))
            index += 1

    def described(self) -> dict[str, object]:
        return {
            "input_len": str(self.input_tokens),
            "output_len": str(self.output_tokens),
            "prefix_len": self.prefix_tokens,
            "prefixes": self.prefixes if self.prefix_tokens else 0,
        }


@dataclass(frozen=True)
class ChatWorkload:
    """Conversations of several turns, each of which asks with all that was said before.

    ``prefix_tokens`` stand before the first turn of all of them, as a system prompt would.
    """

    turns: Sizes
    input_tokens: Sizes
    """What each turn adds."""
    output_tokens: Sizes
    think_ms: Sizes
    """The pause between an answer and the next turn."""
    prefix_tokens: int = 0
    name: str = field(default="multi-turn", init=False)
    endless: bool = field(default=True, init=False)

    def conversations(self, seed: int) -> Iterator[Conversation]:
        generator = np.random.default_rng([seed, _LENGTHS])
        index = 0
        while True:
            count = self.turns.draw(generator)
            contents: list[tuple[Piece | str, ...]] = [
                (Piece((_OWN, index, turn), self.input_tokens.draw(generator)),)
                for turn in range(count)
            ]
            if self.prefix_tokens:
                contents[0] = (Piece((_PREFIX, 0), self.prefix_tokens), *contents[0])
            yield Conversation(
                str(index),
                chain(
                    contents,
                    [self.output_tokens.draw(generator) for _ in range(count)],
                    [0.0] + [self.think_ms.draw(generator) / 1e3 for _ in range(count - 1)],
                ),
            )
            index += 1

    def described(self) -> dict[str, object]:
        return {
            "turns": str(self.turns),
            "input_len": str(self.input_tokens),
            "output_len": str(self.output_tokens),
            "think_ms": str(self.think_ms),
            "prefix_len": self.prefix_tokens,
        }


@dataclass(frozen=True)
class PatternWorkload:
    """The four patterns of queries, evenly: short or long prompts, short or long answers."""

    sizes: Patterns
    name: str = field(default="patterns", init=False)
    endless: bool = field(default=True, init=False)

    def conversations(self, seed: int) -> Iterator[Conversation]:
        generator = np.random.default_rng([seed, _LENGTHS])
        kinds = list(self.sizes.kinds())
        index = 0
        while True:  # each four requests are one of every pattern, in any order
            for which in generator.permutation(len(kinds)).tolist():
                pattern, prompt, output = kinds[which]
                piece = Piece((_OWN, index), prompt)
                yield Conversation(str(index), (Turn((piece,), output, pattern=pattern),))
                index += 1

    def described(self) -> dict[str, object]:
        return {name: [prompt, output] for name, prompt, output in self.sizes.kinds()}


@dataclass(frozen=True)
class RecordedWorkload:
    """The conversations of a file, in its order."""

    name: str
    recorded: tuple[Conversation, ...]
    about: tuple[tuple[str, object], ...] = ()
    endless: bool = field(default=False, init=False)

    def conversations(self, seed: int) -> Iterator[Conversation]:
        return iter(self.recorded)

    def described(self) -> dict[str, object]:
        return {"conversations": len(self.recorded), **dict(self.about)}
