"""Checkpoints of ``penstock quantize --method quip``: QuIP#'s points of a lattice.

There is no published format that names its parts, so this is Penstock's own (docs/quantize.md has
it for other readers).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from penstock.interface.sources import Shape, Stored
from penstock.models.modules import EVERY, parts
from penstock.models.names import NameMap
from penstock.models.quantized_modules import QuantizedModules, Rule
from penstock.models.reader import ConfigReader
from penstock.quant.lattice import SIZE
from penstock.quant.lattice_matrix import LatticeBits

METHOD: Final = "quip"
CODEBOOK: Final = "E8P"
FLOATS: Final = "modules_to_not_convert"
CODES: Final = "weight_codes"
SCALE: Final = "weight_scale"
MOST_SEED: Final = 2**31 - 1


@dataclass(frozen=True)
class Quip:
    """``weight_codes`` uint8 ``[n, ceil(k / 8), bits]`` and ``weight_scale`` ``[1]``, as
    :class:`~penstock.quant.lattice_matrix.LatticeMatrix` has them."""

    bits: LatticeBits
    seed: int
    scheme: ClassVar[None] = None
    any_order: ClassVar[bool] = False
    stacks: ClassVar[bool] = False

    def __str__(self) -> str:
        return f"QuIP# of {self.bits} bits"

    def tensors(self, name: str, shape: Shape) -> tuple[Stored, ...]:
        n, k = shape
        return (
            Stored(f"{name}.{CODES}", (n, -(-k // SIZE), self.bits), "uint8"),
            Stored(f"{name}.{SCALE}", (1,)),
        )

    def optional(self, name: str) -> tuple[str, ...]:
        return ()


def read(config: ConfigReader, names: NameMap) -> QuantizedModules:
    """Read ``quantization_config``; raises ModelError for what would be read wrongly."""
    if config.text("codebook") != CODEBOOK:
        raise config.error(
            "codebook", f"must be {CODEBOOK}, of all of QuIP#'s the one that is read"
        )
    bits = config.integer("bits", low=2)
    seed = config.integer("seed", low=0, high=MOST_SEED)
    skipped = config.texts(FLOATS)
    config.finish()
    form: Quip
    match bits:
        case 2 | 3 | 4:
            form = Quip(bits, seed)
        case _:
            raise config.error("bits", "must be 2, 3 or 4")
    rules = (Rule(parts(skipped or ()), None), Rule(EVERY, form))
    return QuantizedModules("QuIP#", rules, names)
