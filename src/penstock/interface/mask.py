"""Which tokens a grammar allows next, as one bit a token."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

TokenMask = NDArray[np.uint32]
"""[words_for(vocab)]: token ``i`` may be chosen if bit ``i % 32`` of word ``i // 32`` is set. The
bits behind the vocabulary are not."""


class StepMasks(NamedTuple):
    """The tokens that a step's samples may draw."""

    masks: list[TokenMask | None] | None
    """The mask of each sample, None where all tokens are allowed. The whole list is None if no
    sample is constrained."""
    late: frozenset[int]
    """The indices of samples whose mask is not computed yet: they cannot draw in this step."""

    @property
    def in_time(self) -> list[TokenMask | None] | None:
        """The masks, for an executor without ``Capabilities.late_masks``.

        Raises ValueError if one is late.
        """
        if self.late:
            raise ValueError(
                f"the masks of samples {sorted(self.late)} are late, and this executor draws from "
                "all: leave these out of the step, or ask for its logits and draw on the host"
            )
        return self.masks


NO_MASKS = StepMasks(None, frozenset())


class MaskSource(Protocol):
    """The masks of a step, which may be computed while its logits are."""

    def take(self) -> StepMasks:
        """Return the masks; called once, as late as the executor can wait for them. It may block
        for a moment. The masks do not change any more."""
        ...


def words_for(vocab_size: int) -> int:
    return -(-vocab_size // 32)


def allowed(mask: TokenMask, vocab_size: int) -> NDArray[np.bool_]:
    """The mask as one bool a token."""
    bits = np.unpackbits(mask.astype("<u4", copy=False).view(np.uint8), bitorder="little")
    return bits[:vocab_size].view(np.bool_)


def mask_of(allowed_tokens: NDArray[np.bool_]) -> TokenMask:
    """The mask that :func:`allowed` reads as ``allowed_tokens``."""
    bits = np.zeros(words_for(len(allowed_tokens)) * 32, np.bool_)
    bits[: len(allowed_tokens)] = allowed_tokens
    return np.packbits(bits, bitorder="little").view("<u4").astype(np.uint32, copy=False)
