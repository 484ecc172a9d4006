"""Formats in which a quantized matrix is stored, and what a configuration says of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from penstock.models.spec import DType
from penstock.quantize.grid import IntegerGrid, IntegerMatrix
from penstock.quantize.storage import awq, compressed_tensors, gptq
from penstock.quantize.storage.arrays import Arrays

__all__ = ["STORAGES", "Arrays", "Storage"]


class Storage(Protocol):
    """A module of functions for each format."""

    def scale_dtype(self, weights: DType) -> DType:
        """The type of scales in a checkpoint whose weights have this one."""
        ...

    def config(self, grid: IntegerGrid, by_index: bool, floats: Sequence[str]) -> dict[str, object]:
        """``quantization_config`` of a checkpoint of which all matrices of layers are on ``grid``,
        but for those of the modules ``floats``.

        ``by_index``: whether groups may be of any columns. Raises ConfigError for what the format
        does not have.
        """
        ...

    def arrays(self, matrix: IntegerMatrix) -> Arrays:
        """The tensors of a matrix, by what follows its module's name and a dot."""
        ...


STORAGES: Final[Mapping[str, Storage]] = {
    "compressed-tensors": compressed_tensors,
    "gptq": gptq,
    "awq": awq,
}
