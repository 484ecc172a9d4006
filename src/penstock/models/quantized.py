"""The formats of quantized checkpoints, as a model's configuration describes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Protocol

from penstock.errors import ModelError
from penstock.interface.sources import PackedFormat
from penstock.models import gptq
from penstock.models.reader import ConfigReader
from penstock.quant.scheme import GroupScheme


class QuantizedFormat(PackedFormat, Protocol):
    """How a checkpoint is quantized. As text, its name and scheme."""

    @property
    def scheme(self) -> GroupScheme:
        """The scheme of matrices as they are read."""
        ...

    def stores(self, name: str) -> bool:
        """Whether the matrix of a product is quantized, by its canonical name."""
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
