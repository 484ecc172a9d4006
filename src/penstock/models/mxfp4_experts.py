"""Checkpoints whose experts are in MXFP4, as gpt-oss is published."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import ClassVar, Final

from penstock.interface.sources import Shape, Stored
from penstock.models.reader import ConfigReader
from penstock.quant.formats import FORMATS
from penstock.quant.scheme import BlockScheme

METHOD: Final = "mxfp4"
STACK: Final = "_blocks"
"""How the name of a tensor ends that has a stack's codes."""
_SCHEME: Final = FORMATS["MXFP4"].scheme
_EXPERTS: Final = ".experts."


@dataclass(frozen=True)
class Mxfp4Stack:
    """The matrices of a layer's experts, in two tensors for all of them."""

    scheme: ClassVar[BlockScheme] = _SCHEME
    any_order: ClassVar[bool] = False

    def __str__(self) -> str:
        return str(self.scheme)

    def tensors(self, name: str, shape: Shape) -> tuple[Stored, ...]:
        raise TypeError(f"{name} is a stack in MXFP4, which its source has the tensors of")

    def optional(self, name: str) -> tuple[str, ...]:
        return ()


@dataclass(frozen=True)
class Mxfp4Experts:
    """Matrices of experts in blocks of MXFP4. They are read as floats, unless ``kept``."""

    kept: bool = False
    any_order: ClassVar[bool] = False
    notes: ClassVar[tuple[str, ...]] = ()

    def __str__(self) -> str:
        return "experts in MXFP4"

    @property
    def schemes(self) -> tuple[BlockScheme, ...]:
        return (_SCHEME,) if self.kept else ()

    @property
    def as_floats(self) -> tuple[str, ...]:
        return () if self.kept else ("MXFP4",)

    def matrix(self, name: str, columns: int | None = None) -> Mxfp4Stack | None:
        """How the stack of a layer's experts ``name`` is stored, where it is kept."""
        return Mxfp4Stack() if self.kept and _EXPERTS in name else None

    def is_idle(self, tensor: str) -> bool:
        """No tensor."""
        return False

    def limited(self, formats: Collection[str], rounded: bool) -> Mxfp4Experts:
        """As :class:`~penstock.models.quantized.QuantizedFormat` has it."""
        return replace(self, kept=_SCHEME.format in formats and not rounded)


def read(config: ConfigReader) -> Mxfp4Experts:
    """Read ``quantization_config``; tensors tell which matrices are so."""
    config.raw("modules_to_not_convert"), config.raw("dequantize")
    config.finish()
    return Mxfp4Experts()
