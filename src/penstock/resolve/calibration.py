"""Decides whether the model reads a text before its weights are packed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from penstock.backends.backend import Backend
from penstock.backends.registry import backend
from penstock.errors import ConfigError
from penstock.quant.scheme import GridScheme, Quantization
from penstock.resolve.inputs import Inputs, Reasons
from penstock.tokenizer.load import has_tokenizer


@dataclass(frozen=True)
class CalibrationDecision:
    """What is measured by a text (``engine/calibration.py``), and why."""

    matrices: bool
    """Whether inputs of matrices are (``plan/balance.py``)."""
    keys: bool
    """Whether keys are (``plan/key_columns.py``)."""
    reasons: Reasons
    """Empty where nothing is rounded that a text could help."""


def decide_calibration(
    inputs: Inputs, chosen: Backend, schemes: Quantization, tokenizer: Path
) -> CalibrationDecision:
    """Return what the option asks for, as far as there is a text that the model can read.

    It does something for the matrices on grids that a balanced plan has, and for keys in 4 bits.
    Raises ConfigError where the user asks for none, and there is none.
    """
    nothing = _nothing_to_scale(inputs, schemes)
    in_four_bits = inputs.types.kv_cache == "int4" and chosen.centers_keys
    keys = in_four_bits and inputs.plan is None  # what drafts has a plan already
    if nothing is not None and not keys:
        its_own = not inputs.drafts and inputs.spec.published == "model"
        if its_own and not inputs.config.quantization_calibration:
            raise ConfigError(
                f"quantization_calibration false (--no-quantization-calibration) has no effect: "
                f"{nothing}; leave it out"
            )
        rounded = schemes.linear is not None
        return CalibrationDecision(
            False, False, {"quantization_calibration": f"none: {nothing}"} if rounded else {}
        )
    matrices = nothing is None and inputs.types.weights != "float16"
    what = " and ".join(["columns"] * matrices + ["cached keys"] * keys)
    why_not = _why_not(inputs, matrices, keys)
    why = why_not or f"{what} are scaled by a short text that the model reads at a first start"
    if why_not is None and not has_tokenizer(tokenizer):
        why = f"{what} are scaled by tokens from all over the vocabulary, without a tokenizer"
    measured = why_not is None
    return CalibrationDecision(
        measured and matrices, measured and keys, {"quantization_calibration": why}
    )


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


def _why_not(inputs: Inputs, matrices: bool, keys: bool) -> str | None:
    """Return why columns are scaled by the matrices alone, and ``keys`` not at all."""
    config = inputs.config
    alone = " and ".join(
        ["the matrices alone decide"] * matrices + ["keys are cached as they are"] * keys
    )
    if config.load_format == "dummy":
        return "dummy weights are not scaled"
    if inputs.drafts:
        return "models that draft are not scaled"
    if not matrices and not keys:
        return "weights in float16 are not scaled"
    if not config.quantization_calibration:
        return f"{alone}, as asked"
    try:
        backend("cpu").packing()
    except ConfigError:
        return f"{alone}, as there is no native executor to read a text"
    return None
