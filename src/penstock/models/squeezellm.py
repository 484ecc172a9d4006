"""Matrices with a codebook for each row and a few weights in floats, as SqueezeLLM makes them, in a
format of Penstock's own.

``quantization_config`` has ``quant_method`` ``penstock-squeezellm``, ``bits``, ``outliers`` (which
part of a matrix's weights stays in floats) and ``modules_to_not_convert``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from penstock.interface.sources import Shape, Stored
from penstock.models.modules import EVERY, Modules
from penstock.models.names import NameMap
from penstock.models.quantized_modules import QuantizedModules, Rule
from penstock.models.reader import ConfigReader

METHOD: Final = "penstock-squeezellm"
MOST_OUTLIERS: Final = 0.1


@dataclass(frozen=True)
class RowCodebooks:
    """``codebook`` float ``[n, 2 ** bits]`` has the values of the codes of each row, and ``codes``
    int32 ``[n, ceil(k * bits / 32)]`` these, a stream of bits for each row, the first code in the
    lowest bits.

    Weight ``outlier_columns[i]`` of row r is ``outlier_values[i]``, float, whatever its code, for i
    from ``outlier_rows[r]`` to ``outlier_rows[r + 1]``: int32 ``[count]``, ``[count]`` and
    ``[n + 1]``, with the columns of a row ascending.
    """

    bits: int
    """3 or 4."""
    outliers: float
    """What part of all weights stays in floats."""
    scheme: ClassVar[None] = None
    any_order: ClassVar[bool] = False
    stacks: ClassVar[bool] = False

    def __str__(self) -> str:
        return f"codebooks of {self.bits} bits by row"

    def count(self, shape: Shape) -> int:
        """How many weights of a matrix stay in floats."""
        n, k = shape
        return int(n * k * self.outliers)

    def tensors(self, name: str, shape: Shape) -> tuple[Stored, ...]:
        n, k = shape
        count = self.count(shape)
        return (
            Stored(f"{name}.codes", (n, -(-k * self.bits // 32)), "int32"),
            Stored(f"{name}.codebook", (n, 1 << self.bits)),
            Stored(f"{name}.outlier_rows", (n + 1,), "int32"),
            Stored(f"{name}.outlier_columns", (count,), "int32"),
            Stored(f"{name}.outlier_values", (count,)),
        )

    def optional(self, name: str) -> tuple[str, ...]:
        return ()


def read(config: ConfigReader, names: NameMap) -> QuantizedModules:
    """Read ``quantization_config``; raises ModelError for what would be read wrongly."""
    bits = config.integer("bits")
    if bits not in (3, 4):
        raise config.error("bits", "is not supported; supported are 3 and 4")
    outliers = config.number("outliers", low=0.0, high=MOST_OUTLIERS)
    left = frozenset(config.texts("modules_to_not_convert") or ())
    config.finish()
    rules = (Rule(Modules(left), None), Rule(EVERY, RowCodebooks(bits, outliers)))
    return QuantizedModules(METHOD, rules, names, head=True)
