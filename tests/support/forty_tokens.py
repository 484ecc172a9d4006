"""The logits that a model gives a sequence of forty tokens, whatever its layers keep."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from support.one_sequence import bound

_TOKENS = np.random.default_rng(2).integers(0, 250, 40).tolist()


def logits(path: Path, backend: str = "reference") -> NDArray[np.float32]:
    """``[40, vocabulary]``, in float32."""
    with bound(path, backend, context=64, chunk=len(_TOKENS)) as run:
        result: NDArray[np.float32] = run(_TOKENS, 0).logits.copy()
    return result
