"""What a launch tells the sampling kernels about each row: one record of 64-bit columns.

Real numbers are float64 in the same records (float32 options are exact in it), so that a launch
sends one array: ``jobs`` and ``reals`` of the kernels are the same memory.
"""

from __future__ import annotations

import triton.language as tl

WIDTH = tl.constexpr(16)
"""Columns of a record."""

# int64
LOGITS = tl.constexpr(0)
"""Address of the float32 row that is chosen from: the model's, or the one that options changed."""
ROW = tl.constexpr(1)
"""Index of the row in the model's logits."""
BITS = tl.constexpr(2)
"""The uniform 64 bits that decide the draw."""
LEAST = tl.constexpr(3)
"""Weights below this are zero: min-p."""
TOP_K = tl.constexpr(4)
"""0 keeps all."""
COUNTS = tl.constexpr(5)
"""Address of int32 ``[vocab]``: twice the occurrences in the output, plus 1 if in the prompt. 0:
the row has no penalties."""
LISTS = tl.constexpr(6)
"""Address of int32: tokens with a bias, ascending; their biases as float32; ending tokens,
ascending."""
NUM_BIASES = tl.constexpr(7)
NUM_ENDING = tl.constexpr(8)
"""Ending tokens that must not be chosen yet; 0 once the sequence is long enough."""
MASK = tl.constexpr(9)
"""Address of int32 words whose bits, the lowest first, are set for tokens that the sequence's
grammar allows. 0: it allows all."""

# float64
INVERSE_TEMPERATURE = tl.constexpr(10)
TOP_P = tl.constexpr(11)
REPETITION = tl.constexpr(12)
FREQUENCY = tl.constexpr(13)
PRESENCE = tl.constexpr(14)

# Codes of what is wrong with a row; 0 is nothing.
NOT_A_NUMBER = tl.constexpr(1)
INFINITE = tl.constexpr(2)
ONLY_NEGATIVE_INFINITE = tl.constexpr(3)
NO_TOKEN_LEFT = tl.constexpr(4)
