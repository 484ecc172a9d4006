"""The formats of quantized checkpoints, as a model's configuration describes them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Final, Protocol

from penstock.models import (
    awq,
    bitsandbytes,
    compressed_tensors,
    fp8,
    gptq,
    modelopt,
    mxfp4_experts,
    quip,
    squeezellm,
)
from penstock.models.names import NameMap
from penstock.models.packed_matrix import MatrixFormat
from penstock.models.reader import ConfigReader
from penstock.quant.scheme import QuantScheme


class QuantizedFormat(Protocol):
    """How a checkpoint is quantized: which of its matrices, and in which formats. As text, its name
    and formats, for ``penstock explain`` and errors."""

    @property
    def schemes(self) -> tuple[QuantScheme, ...]:
        """All schemes that its matrices have; empty where all become floats."""
        ...

    @property
    def as_floats(self) -> tuple[str, ...]:
        """The formats of those matrices that become floats."""
        ...

    @property
    def any_order(self) -> bool:
        """Whether the columns of a group may lie anywhere in a matrix, which weights tell."""
        ...

    @property
    def notes(self) -> tuple[str, ...]:
        """What a user should know of the checkpoint, a line each."""
        ...

    def matrix(self, name: str, columns: int | None = None) -> MatrixFormat | None:
        """How the matrix of a product is stored, by its canonical name; None: in floats.

        ``columns``: of its rows, which decide whether they are whole blocks; None where the matrix
        is read as floats in any case.
        """
        ...

    def limited(self, formats: Collection[str], rounded: bool) -> QuantizedFormat | None:
        """The same as a backend reads it that multiplies by blocks of ``formats``: matrices in
        others are read as floats, and so are those that options ask to be ``rounded``. None where
        nothing is quantized then."""
        ...

    def is_idle(self, tensor: str) -> bool:
        """Whether a tensor of the checkpoint is one that no matrix is read from."""
        ...


QUANT_METHODS: Final[Mapping[str, Callable[[ConfigReader, NameMap], QuantizedFormat]]] = {
    gptq.METHOD: gptq.read,
    awq.METHOD: awq.read,
    compressed_tensors.METHOD: compressed_tensors.read,
    bitsandbytes.METHOD: bitsandbytes.read,
    fp8.METHOD: fp8.read,
    fp8.FBGEMM: fp8.read_fbgemm,
    modelopt.METHOD: modelopt.read,
    mxfp4_experts.METHOD: mxfp4_experts.read,
    squeezellm.METHOD: squeezellm.read,
    quip.METHOD: quip.read,
}
"""Readers of ``quantization_config``, by ``quant_method``. They get the names of the model's
modules, which configurations tell of."""


def read_quantized(section: ConfigReader, names: NameMap) -> QuantizedFormat:
    """What ``quantization_config`` says.

    ``names`` are those of the checkpoint's tensors. Raises ModelError for formats, fields and
    values that Penstock does not know.
    """
    method = section.text("quant_method")
    if method not in QUANT_METHODS:
        raise section.error(
            "quant_method",
            f"is not supported; supported are {', '.join(QUANT_METHODS)}, or use the unquantized "
            "checkpoint this one was made from",
        )
    return QUANT_METHODS[method](section, names)
