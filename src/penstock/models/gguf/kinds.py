"""What GGUF files hold besides models."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Final

from penstock.errors import ModelError, shown
from penstock.gguf.metadata import GgufValue

ARCHITECTURE: Final = "general.architecture"
_TYPE: Final = "general.type"
_MODEL: Final = "model"
_READS_IMAGES: Final = (
    "is the part of a model that reads images or sound (mmproj), which is not served; give the "
    "file of the language model, which has tensors such as token_embd.weight"
)
_KINDS: Final[Mapping[object, str]] = {
    "adapter": (
        "is an adapter (LoRA) and no model; merge it into its model, and give the file of that"
    ),
    "mmproj": _READS_IMAGES,
    "imatrix": ("is an importance matrix and no model; penstock convert takes it by --imatrix"),
}
ENCODER: Final = re.compile(r"bert|encoder|-embed(?:ding)?$")
"""What the names of architectures have in them that are no language models."""
_PROJECTOR: Final = "clip"
"""The architecture of files of before there was a type for them."""


def require_model(metadata: Mapping[str, GgufValue], tensors: Collection[str], where: str) -> None:
    """Raise ModelError, naming ``where`` and what it is, unless a file with this metadata and these
    tensors holds a model."""
    kind = metadata.get(_TYPE, _MODEL)
    told = _KINDS.get(kind) if isinstance(kind, str) else None
    if told is None and metadata.get(ARCHITECTURE) == _PROJECTOR:
        told = _READS_IMAGES
    if told is not None:
        raise ModelError(f"{where} {told}")
    if kind != _MODEL:
        raise ModelError(
            f"{where} is no model: {_TYPE} is {shown(kind)}; give the file of the model"
        )
    if ARCHITECTURE not in metadata:
        raise ModelError(f"{where} has no {ARCHITECTURE}, so it is no model; give the model's file")
    if not tensors:
        raise ModelError(
            f"{where} has no tensors, only a vocabulary, so it is no model; give the model's file"
        )
