"""What quantization refuses."""

from __future__ import annotations

from penstock.errors import WeightError


def not_finite(name: str) -> WeightError:
    """The error of a matrix that holds NaN or infinity."""
    return WeightError(
        f"{name} has values that are not finite, which cannot be quantized; "
        "load it with --quantization none, or repair the checkpoint"
    )


def not_sparse(name: str) -> WeightError:
    """The error of a matrix whose codes are not as sparse as the configuration says."""
    return WeightError(
        f"{name} has more than two weights in four columns, but config.json says that the "
        "checkpoint has 2:4 sparsity; take sparsity_config out of quantization_config there, or "
        "take both from one checkpoint"
    )
