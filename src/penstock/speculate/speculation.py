"""What the engine's loop has to do with speculation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from penstock.speculate.draft import Draft, Proposer, Wanted

if TYPE_CHECKING:
    from penstock.engine.request import Sequence


class Speculation:
    """Asks ``proposer`` for up to ``num_tokens`` drafts for every sequence that decodes."""

    def __init__(self, proposer: Proposer, num_tokens: int) -> None:
        self._proposer = proposer
        self._num_tokens = num_tokens

    def drafts(self, running: Iterable[Sequence]) -> dict[Sequence, Draft]:
        """For the next step."""
        wanted = []
        for sequence in running:
            known = len(sequence.token_ids)
            if known - sequence.num_computed == 1 and known > sequence.num_prompt_tokens:
                most = min(self._num_tokens, sequence.max_total_tokens - known - 1)
                if most > 0:
                    wanted.append(Wanted(sequence, most))
        if not wanted:
            return {}
        proposed = self._proposer.propose(wanted)
        return {
            sequence: draft
            for (sequence, _), draft in zip(wanted, proposed, strict=True)
            if draft is not None
        }

    def check_integrity(self) -> None:
        self._proposer.check_integrity()

    def close(self) -> None:
        self._proposer.close()
