"""How kernels run in this process: compiled for a GPU, or interpreted on the CPU for tests."""

from __future__ import annotations

import triton

INTERPRETED: bool = bool(triton.knobs.runtime.interpret)
"""``TRITON_INTERPRET=1`` was set before the first kernel was imported."""
