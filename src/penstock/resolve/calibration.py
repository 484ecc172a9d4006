"""Decides whether the model reads a text before its matrices are rounded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from penstock.backends.registry import backend
from penstock.errors import ConfigError
from penstock.quant.scheme import GridScheme, Quantization
from penstock.resolve.inputs import Inputs, Reasons
from penstock.tokenizer.load import has_tokenizer


@dataclass(frozen=True)
class CalibrationDecision:
    """Whether inputs of matrices are measured (``engine/calibration.py``), and why."""

    calibrated: bool
    reasons: Reasons
    """Empty where no matrix is rounded that a text could help."""


def decide_calibration(
    inputs: Inputs, schemes: Quantization, tokenizer: Path
) -> CalibrationDecision:
    """Return what the option asks for, as far as there is a text that the model can read.

    It does something for the matrices on grids that a balanced plan has (``plan/balance.py``).
    Raises ConfigError where the user asks for none, and there is none.
    """
    nothing = _nothing_to_scale(inputs, schemes)
    if nothing is not None:
        its_own = not inputs.drafts and inputs.spec.published == "model"
        if its_own and not inputs.config.quantization_calibration:
            raise ConfigError(
                f"quantization_calibration false (--no-quantization-calibration) has no effect: "
                f"{nothing}; leave it out"
            )
        rounded = schemes.linear is not None
        return CalibrationDecision(
            False, {"quantization_calibration": f"none: {nothing}"} if rounded else {}
        )
    why_not = _why_not(inputs)
    why = why_not or "columns are scaled by a short text that the model reads at a first start"
    if why_not is None and not has_tokenizer(tokenizer):
        why = "columns are scaled by tokens from all over the vocabulary, without a tokenizer"
    return CalibrationDecision(why_not is None, {"quantization_calibration": why})


def _nothing_to_scale(inputs: Inputs, schemes: Quantization) -> str | None:
    """Return why no columns are scaled, whatever the matrices and the text; None if they are."""
    own = inputs.spec.quantized
    if own is not None and own.schemes:
        return "the checkpoint is quantized already, and is kept as it is"
    if schemes.linear is None:
        return "no matrices are rounded without quantization"
    if not isinstance(schemes.linear, GridScheme):
        return "columns are scaled where whole rows have one scale, not groups of columns"
    if not schemes.activations:
        return "columns are scaled where activations are rounded, too, and here weights alone are"
    return None


def _why_not(inputs: Inputs) -> str | None:
    """Return why columns are scaled by the matrices alone."""
    config = inputs.config
    if config.load_format == "dummy":
        return "dummy weights are not scaled"
    if inputs.drafts:
        return "models that draft are not scaled"
    if inputs.types.weights == "float16":
        return "weights in float16 are not scaled"
    if not config.quantization_calibration:
        return "the matrices alone decide, as asked"
    try:
        backend("cpu").packing()
    except ConfigError:
        return "the matrices alone decide, as there is no native executor to read a text"
    return None
