"""Chooses schemes by options."""

from __future__ import annotations

from penstock.dtypes import QuantizationName, WindowColumns
from penstock.errors import ConfigError
from penstock.quant.scheme import (
    GROUP_SIZES,
    Bits,
    GridScheme,
    GroupScheme,
    Quantization,
    QuantScheme,
)

HEAD_SCHEME = GridScheme(8)
"""Scheme of the output matrix, whatever the other matrices have: its rounding errors affect the
logits directly."""


def choose(
    name: QuantizationName,
    group: int | None,
    head: bool,
    *,
    zero_points: bool = False,
    activations: bool = True,
    window_columns: WindowColumns = 16,
) -> Quantization:
    """The schemes that the options ask for; ``group`` 0 is a whole row, None a row's grid.

    ``window_columns`` are those of a window that the backend's kernels multiply.

    Raises ConfigError where they do not go together.
    """
    if zero_points and group is None:
        raise ConfigError(
            "quantization_zero_points are kept for each group of columns; set quantization_group "
            "to 32, 64, 128 or 0 (whole rows), or leave the zero points out"
        )
    bits: dict[str, Bits] = {"int8": 8, "int4": 4}
    if name == "none":
        if group is not None:
            raise ConfigError(
                f"quantization_group {group} has no effect without quantization; "
                "set quantization to int8 or int4, or leave the group out"
            )
        return Quantization(activations=activations)
    if name not in bits:
        raise ConfigError(f"quantization must be none, int8 or int4, not {name!r}")
    if group not in (None, 0, *GROUP_SIZES):
        raise ConfigError(
            f"quantization_group must be 32, 64, 128, or 0 for whole rows, not {group}"
        )
    scheme: QuantScheme = GridScheme(bits[name], window_columns if name == "int4" else 16)
    if zero_points or group not in (None, 0) or (name, group) == ("int4", 0):
        scheme = GroupScheme(bits[name], group or None, zero_points)
    return Quantization(scheme, HEAD_SCHEME if head else None, activations)
