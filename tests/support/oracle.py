"""A proposer that knows what sequences will say, because it has seen them say it without drafts."""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence

from penstock.scheduler.draft import Draft, draft_tree
from penstock.scheduler.sequence import SequenceState
from penstock.speculate.draft import Wanted

Texts = dict[tuple[int, tuple[int, ...]], list[int]]
"""Texts by a sequence's key and prompt."""


def name(sequence: SequenceState) -> tuple[int, tuple[int, ...]]:
    return (sequence.key, tuple(sequence.token_ids[: sequence.num_prompt_tokens]))


class Recorder:
    """Proposes nothing and remembers whom it was asked for."""

    kinds = 1
    cheap = False
    steady = True

    def __init__(self) -> None:
        self.seen: dict[int, SequenceState] = {}

    def propose(self, wanted: Sequence[Wanted]) -> list[Draft | None]:
        self.seen.update((id(sequence), sequence) for sequence, _ in wanted)
        return [None] * len(wanted)

    def texts(self) -> Texts:
        return {name(s): s.token_ids.tolist() for s in self.seen.values()}

    def reset(self) -> None: ...

    def check_integrity(self) -> None: ...

    def close(self) -> None: ...


class Oracle(Recorder):
    """Each token that it knows is drafted rightly with probability ``right``, else wrongly.

    ``branching``: in trees, of which the right tokens, as far as they are there, are one path.
    """

    def __init__(
        self, texts: Texts, vocab: int, right: float, seed: int = 0, branching: bool = False
    ) -> None:
        super().__init__()
        self._texts = texts
        self._vocab = vocab
        self._right = right
        self._random = random.Random(seed)
        self._branching = branching

    def propose(self, wanted: Sequence[Wanted]) -> list[Draft | None]:
        return [self._draft(sequence, most) for sequence, most in wanted]

    def _draft(self, sequence: SequenceState, most: int) -> Draft | None:
        known = len(sequence.token_ids)
        ahead = self._texts.get(name(sequence), [])[known : known + most]
        if not ahead:
            return None
        if self._branching:
            return self._tree(ahead, most)
        tokens = array("i")
        for token in ahead:
            wrong = self._random.random() >= self._right
            tokens.append(self._other(token) if wrong else token)
        return Draft(tokens)

    def _other(self, token: int) -> int:
        return (token + 1 + self._random.randrange(self._vocab - 1)) % self._vocab

    def _tree(self, ahead: list[int], most: int) -> Draft:
        """A tree of ``most`` tokens: the right path as far as it goes, among wrong ones."""
        tokens, parents, right = array("i"), array("i"), [-1]
        taken: set[tuple[int, int]] = set()
        while len(tokens) < most:
            depth = len(right) - 1
            if depth < len(ahead) and self._random.random() < self._right * 0.6:
                parent, token = right[-1], ahead[depth]
                if (parent, token) not in taken:
                    right.append(len(tokens))
            else:
                parent = self._random.randrange(-1, len(tokens))
                token = self._random.randrange(self._vocab)
                known = parent in right and right.index(parent)
                if known is not False and known < len(ahead) and token == ahead[known]:
                    continue  # would be the right one
            if (parent, token) in taken:
                continue
            taken.add((parent, token))
            tokens.append(token)
            parents.append(parent)
        return draft_tree(tokens, parents)
