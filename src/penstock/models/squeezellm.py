"""Matrices with a codebook for each row and a few weights in floats, as SqueezeLLM makes them, in a
format of Penstock's own.

``quantization_config`` has ``quant_method`` ``penstock-squeezellm``, ``bits``, ``outliers`` (which
part of a matrix's weights stays in floats) and ``modules_to_not_convert``.
"""

from __future__ import annotations

from typing import Final

from penstock.models.modules import EVERY, Modules
from penstock.models.names import NameMap
from penstock.models.quantized_modules import QuantizedModules, Rule
from penstock.models.reader import ConfigReader
from penstock.models.row_codebooks import RowCodebooks

METHOD: Final = "penstock-squeezellm"
MOST_OUTLIERS: Final = 0.1


def read(config: ConfigReader, names: NameMap) -> QuantizedModules:
    """Read ``quantization_config``; raises ModelError for what would be read wrongly."""
    bits = config.integer("bits")
    outliers = config.number("outliers", low=0.0, high=MOST_OUTLIERS)
    left = frozenset(config.texts("modules_to_not_convert") or ())
    config.finish()
    form: RowCodebooks
    match bits:
        case 3 | 4:
            form = RowCodebooks(bits, outliers)
        case _:
            raise config.error("bits", "is not supported; supported are 3 and 4")
    rules = (Rule(Modules(left), None), Rule(EVERY, form))
    return QuantizedModules(METHOD, rules, names, head=True)
