"""Checkpoints of ``penstock quantize --method quip``: QuIP#'s points of a lattice.

There is no published format that names its parts, so this is Penstock's own
(docs/quantized-formats.md has it for other readers).
"""

from __future__ import annotations

from typing import Final

from penstock.models.integer_matrix import Integers
from penstock.models.lattice_codes import LatticeCodes
from penstock.models.modules import EVERY, Modules, parts
from penstock.models.names import NameMap
from penstock.models.quantized_modules import QuantizedModules, Rule
from penstock.models.reader import ConfigReader
from penstock.quant.scheme import LATTICE

METHOD: Final = "quip"
FLOATS: Final = "modules_to_not_convert"
TABLE_BITS: Final = "embedding_bits"
TABLE: Final = Integers(8, "row", zero_points=False, packed=True)
"""How an embedding and an output matrix of 8 bits are stored: as compressed-tensors does."""
MOST_SEED: Final = 2**31 - 1


def read(config: ConfigReader, names: NameMap) -> QuantizedModules:
    """Read ``quantization_config``; raises ModelError for what would be read wrongly."""
    if config.text("codebook") != LATTICE:
        raise config.error("codebook", f"must be {LATTICE}, of all of QuIP#'s the one that is read")
    bits = config.integer("bits", low=2)
    seed = config.integer("seed", low=0, high=MOST_SEED)
    skipped = config.texts(FLOATS)
    table = config.has(TABLE_BITS)
    if table:
        config.only(TABLE_BITS, 8, "must be 8, or left out where the embedding is in floats")
    config.finish()
    form: LatticeCodes
    match bits:
        case 2 | 3 | 4:
            form = LatticeCodes(bits, seed)
        case _:
            raise config.error("bits", "must be 2, 3 or 4")
    rules = (Rule(parts(skipped or ()), None), Rule(EVERY, form))
    if not table:
        return QuantizedModules("QuIP#", rules, names)
    head = Rule(Modules(frozenset(filter(None, (names.module("head"),)))), TABLE)
    idle = r".*\.weight_shape"
    return QuantizedModules("QuIP#", (head, *rules), names, head=True, table=TABLE, idle=idle)
