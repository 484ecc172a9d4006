"""Checkpoints whose experts are in MXFP4, as gpt-oss is published."""

from __future__ import annotations

import re
from typing import Final

from penstock.models.float_codes import Mxfp4
from penstock.models.modules import Modules
from penstock.models.names import NameMap
from penstock.models.quantized_modules import QuantizedModules, Rule
from penstock.models.reader import ConfigReader

METHOD: Final = "mxfp4"
_CODES: Final = "_blocks"
_EXPERTS: Final = Modules(patterns=(re.compile(r"\.experts\."),))


def read(config: ConfigReader, names: NameMap) -> QuantizedModules:
    """Read ``quantization_config``, whose lists do not matter: experts alone are ever quantized."""
    config.raw("modules_to_not_convert"), config.raw("dequantize")
    config.finish()
    rules = (Rule(_EXPERTS, Mxfp4(_CODES, "_scales", in_groups=True)),)
    return QuantizedModules("experts alone", rules, names, marks=_CODES)
