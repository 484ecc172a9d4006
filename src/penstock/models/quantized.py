"""The formats of quantized checkpoints, as a model's configuration describes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Protocol

from penstock.errors import ModelError
from penstock.interface.sources import PackedFormat
from penstock.models import gptq
from penstock.models.reader import ConfigReader
from penstock.quant.scheme import QuantScheme


class MatrixFormat(PackedFormat, Protocol):
    """How one quantized matrix is kept in tensors of a checkpoint, and what it is then."""

    @property
    def scheme(self) -> QuantScheme:
        """The scheme of the matrix as it is read."""
        ...


class QuantizedFormat(Protocol):
    """How a checkpoint is quantized, matrix by matrix. As text, its name and schemes."""

    @property
    def schemes(self) -> tuple[QuantScheme, ...]:
        """All schemes that its matrices have."""
        ...

    @property
    def any_order(self) -> bool:
        """Whether the columns of a group may lie anywhere in a matrix, which weights tell."""
        ...

    def matrix(self, name: str) -> MatrixFormat | None:
        """How the matrix of a product is stored, by its canonical name; None: in floats."""
        ...


FORMATS: Final[Mapping[str, Callable[[ConfigReader], QuantizedFormat]]] = {gptq.METHOD: gptq.read}
"""Readers of ``quantization_config``, by ``quant_method``."""


MXFP4: Final = "mxfp4"
"""The ``quant_method`` of checkpoints whose experts are in MXFP4."""


def read_quantized(config: ConfigReader) -> QuantizedFormat | None:
    """What ``config.json`` says of quantization; None where it says nothing, or that experts are in
    MXFP4: these become floats as they are read.

    Raises ModelError for formats, fields and values that Penstock does not know.
    """
    section = config.section("quantization_config")
    if section is None:
        return None
    method = section.text("quant_method")
    if method == MXFP4:  # tensors tell which matrices are so, and they are read as floats
        section.raw("modules_to_not_convert"), section.raw("dequantize")
        section.finish()
        return None
    if method not in FORMATS:
        raise _unknown(section)
    return FORMATS[method](section)


def _unknown(section: ConfigReader) -> ModelError:
    return section.error(
        "quant_method",
        f"is not supported; supported are {', '.join(FORMATS)}, or use the unquantized checkpoint "
        "this one was made from",
    )
