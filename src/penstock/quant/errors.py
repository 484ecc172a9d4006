"""What quantization refuses."""

from __future__ import annotations

from penstock.errors import WeightError


def not_finite(name: str) -> WeightError:
    """The error of a matrix that holds NaN or infinity."""
    return WeightError(
        f"{name} has values that are not finite, which cannot be quantized; "
        "load it with --quantization none, or repair the checkpoint"
    )
