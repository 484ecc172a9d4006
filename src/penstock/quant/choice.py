"""From options to schemes."""

from __future__ import annotations

from typing import Literal

from penstock.errors import ConfigError
from penstock.quant.scheme import GROUP_SIZES, Bits, Quantization, QuantScheme

QuantizationName = Literal["none", "int8", "int4"]

DEFAULT_GROUPS = {8: 128, 4: 64}
"""By bits; docs/quantization.md has the measurements."""
HEAD_SCHEME = QuantScheme(8, DEFAULT_GROUPS[8])
"""Of the output matrix, whatever the others have: rounding errors of logits reach the reader
directly."""


def choose(name: QuantizationName, group: int | None, head: bool) -> Quantization:
    """The schemes that the options ask for; ``group`` 0 is a whole row, None the default.

    Raises ConfigError where they do not go together.
    """
    bits: dict[str, Bits] = {"int8": 8, "int4": 4}
    if name == "none":
        if group is not None:
            raise ConfigError(
                f"quantization_group {group} has no effect without quantization; "
                "set quantization to int8 or int4, or leave the group out"
            )
        return Quantization()
    if name not in bits:
        raise ConfigError(f"quantization must be none, int8 or int4, not {name!r}")
    if group not in (None, 0, *GROUP_SIZES):
        raise ConfigError(
            f"quantization_group must be 32, 64, 128, or 0 for whole rows, not {group}"
        )
    size = DEFAULT_GROUPS[bits[name]] if group is None else group
    return Quantization(QuantScheme(bits[name], size or None), HEAD_SCHEME if head else None)
