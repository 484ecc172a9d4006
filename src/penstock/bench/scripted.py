"""A proposer whose acceptance and cost are given, to measure all but the draft itself."""

from __future__ import annotations

import random
import time
from array import array
from collections.abc import Mapping, Sequence

from penstock.scheduler.draft import Draft
from penstock.speculate.draft import Wanted


class ScriptedProposer:
    """Knows what each request will say, and drafts each token rightly with probability ``alpha``.

    ``texts``: by request id, the output. A drafted token takes ``seconds``, spent waiting busily as
    a model on the same processor would.
    """

    kinds = 1
    cheap = False
    steady = True

    def __init__(
        self, texts: Mapping[str, list[int]], alpha: float, seconds: float, vocab_size: int
    ) -> None:
        self._texts = texts
        self._alpha = alpha
        self._seconds = seconds
        self._vocab_size = vocab_size
        self._random = random.Random(0)

    def propose(self, wanted: Sequence[Wanted]) -> list[Draft | None]:
        end = time.perf_counter() + self._seconds * max(each.most for each in wanted)
        drafts: list[Draft | None] = []
        for sequence, most in wanted:
            known = sequence.num_output_tokens
            tokens = array("i", self._texts[sequence.request_id][known : known + most])
            for i, token in enumerate(tokens):
                if self._random.random() >= self._alpha:
                    tokens[i] = (token + 1) % self._vocab_size
            drafts.append(Draft(tokens) if tokens else None)
        while time.perf_counter() < end:
            pass
        return drafts

    def reset(self) -> None: ...  # it knows texts, and keeps nothing of requests

    def check_integrity(self) -> None: ...

    def close(self) -> None: ...
