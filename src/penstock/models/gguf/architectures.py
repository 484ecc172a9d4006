"""All architectures of GGUF files that are read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from penstock.models.gguf.architecture import Architecture
from penstock.models.gguf.dense import DENSE
from penstock.models.gguf.gemma import GEMMAS
from penstock.models.gguf.latents import LATENTS
from penstock.models.gguf.lfm2 import LFM2S
from penstock.models.gguf.mixtures import MIXTURES
from penstock.models.gguf.nets import NETS
from penstock.models.gguf.older import OLDER
from penstock.models.gguf.scans import SCANS

ARCHITECTURES: Final[Mapping[str, Architecture]] = {
    **DENSE,
    **MIXTURES,
    **GEMMAS,
    **LFM2S,
    **OLDER,
    **LATENTS,
    **NETS,
    **SCANS,
}
"""Architectures by ``general.architecture``; ``with experts`` stands for files that have some
though others of the same name do not."""
