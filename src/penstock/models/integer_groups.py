"""Groups of columns of integer codes, as configurations have them and as kernels multiply them."""

from __future__ import annotations

from typing import Final, Literal, cast

from penstock.errors import ModelError
from penstock.models.reader import ConfigReader
from penstock.quant.scheme import GROUP_SIZES, Bits

StoredBits = Literal[2, 3, 4, 8]
"""Bits of a code in a checkpoint."""

_LARGEST: Final = GROUP_SIZES[-1]


def read_bits(config: ConfigReader, field: str, usual: int | None = None) -> StoredBits:
    """The number of bits of a code. Raises ModelError for those that no kernel multiplies."""
    bits = config.integer(field, usual)
    if bits not in (2, 3, 4, 8):
        raise config.error(field, "is not supported for integers; supported are 2, 3, 4 and 8")
    return cast(StoredBits, bits)


def kept_bits(stored: StoredBits) -> Bits:
    """The number of bits in which kernels have such codes: 4 for fewer, whose values they hold
    exactly."""
    return 8 if stored == 8 else 4


def group_of(stored: int | None) -> int | None:
    """The groups in which kernels have those of ``stored`` columns: these themselves, or a whole
    number of smaller ones with the same scale. None: whole rows."""
    if stored is None:
        return None
    return next(size for size in reversed(GROUP_SIZES) if stored % size == 0)


def is_kept(stored: int | None) -> bool:
    """Whether there are such groups."""
    return stored is None or stored in GROUP_SIZES or (stored > 0 and stored % _LARGEST == 0)


def read_group(config: ConfigReader, field: str, usual: int | None = None) -> int | None:
    """The number of columns that share a scale; None for -1, whole rows. Raises ModelError for
    groups that kernels do not have."""
    group = config.integer(field, usual, low=-1)
    if group == -1:
        return None
    if not is_kept(group):
        sizes = ", ".join(map(str, GROUP_SIZES))
        raise config.error(
            field, f"is not supported; supported are {sizes}, multiples of {_LARGEST} and -1 (rows)"
        )
    return group


def require_whole(name: str, k: int, group: int | None, method: str) -> None:
    """Raise ModelError unless groups divide the ``k`` columns of matrix ``name``."""
    if group is not None and k % group:
        raise ModelError(
            f"{name} has {k} columns, which are no whole groups of {group} as {method} makes them; "
            "take config.json and weights from one checkpoint"
        )
