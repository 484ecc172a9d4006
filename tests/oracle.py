"""A proposer that knows what sequences will say, because it has seen them say it without drafts."""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence as Seq

from penstock.engine.request import Sequence
from penstock.speculate.draft import Draft, Wanted

Texts = dict[tuple[int, tuple[int, ...]], list[int]]
"""By a sequence's key and prompt."""


def name(sequence: Sequence) -> tuple[int, tuple[int, ...]]:
    return (sequence.key, tuple(sequence.token_ids[: sequence.num_prompt_tokens]))


class Recorder:
    """Proposes nothing and remembers whom it was asked for."""

    groups = 1
    cheap = False
    steady = True

    def __init__(self) -> None:
        self.seen: dict[int, Sequence] = {}

    def propose(self, wanted: Seq[Wanted]) -> list[Draft | None]:
        self.seen.update((id(sequence), sequence) for sequence, _ in wanted)
        return [None] * len(wanted)

    def texts(self) -> Texts:
        return {name(s): s.token_ids.tolist() for s in self.seen.values()}

    def check_integrity(self) -> None: ...

    def close(self) -> None: ...


class Oracle(Recorder):
    """Each token that it knows is drafted rightly with probability ``right``, else wrongly."""

    def __init__(self, texts: Texts, vocab: int, right: float, seed: int = 0) -> None:
        super().__init__()
        self._texts = texts
        self._vocab = vocab
        self._right = right
        self._random = random.Random(seed)

    def propose(self, wanted: Seq[Wanted]) -> list[Draft | None]:
        return [self._draft(sequence, most) for sequence, most in wanted]

    def _draft(self, sequence: Sequence, most: int) -> Draft | None:
        known = len(sequence.token_ids)
        ahead = self._texts.get(name(sequence), [])[known : known + most]
        if not ahead:
            return None
        tokens = array("i")
        for token in ahead:
            wrong = self._random.random() >= self._right
            tokens.append(
                (token + 1 + self._random.randrange(self._vocab - 1)) % self._vocab
                if wrong
                else token
            )
        return Draft(tokens)
