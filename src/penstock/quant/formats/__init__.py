"""The block formats that are known, each with its decoder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from penstock.quant.blocks import BlockFormat
from penstock.quant.formats.legacy import Q4_0, Q8_0

FORMATS: Final[Mapping[str, BlockFormat]] = {each.scheme.format: each for each in (Q4_0, Q8_0)}
"""By name, as GGUF's tools call them."""
