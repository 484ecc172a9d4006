"""What model a GGUF file holds."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from penstock.gguf.metadata import GgufValue
from penstock.gguf.names import SUFFIX, PartName
from penstock.models.gguf.config import GgufTensors, read_gguf_spec
from penstock.models.gguf.rope import shortest_decimals
from penstock.models.spec import ModelSpec
from penstock.weights.gguf_file import GgufModel

_MAX_SMALL = 1 << 16
"""Values of a tensor that says how frequencies are scaled, at most."""

_MAX_NAME = 200
_QUANTIZATION: Final = (
    r"([-._](ud|i1))?[-._]"
    r"((i|t)?q\d\w*|b?fp?(16|32)|mxfp4\w*|nvfp4)([-._]imat\w*)?"
)
"""How a file's name ends that says in what it is quantized."""
_NO_NAME: Final = r"(ggml-)?model|(sha256-)?[0-9a-f]{32,}"
"""What files are called that says nothing: a part of a cache, or whatever a converter wrote."""


def load_gguf_spec(
    model: GgufModel, ignore: Collection[str] = (), sampling_defaults: bool = True
) -> ModelSpec:
    """The model in a GGUF file, or in the parts of one, by its metadata.

    Parameters are those of :func:`~penstock.weights.model_folder.load_model_spec`. Raises
    ModelError for what Penstock does not know.
    """

    def floats(name: str) -> tuple[float, ...] | None:
        return _small(model, name)

    tensors = GgufTensors(
        {name: tensor.shape for name, (_, tensor) in model.tensors.items()},
        {name: tensor.dtype for name, (_, tensor) in model.tensors.items()},
        floats,
    )
    spec = read_gguf_spec(
        model.metadata,
        tensors,
        ignore=ignore,
        sampling_defaults=sampling_defaults,
        where=str(model.path),
    )
    if not model.converted:
        return spec
    note = (
        f"tensors in {', '.join(model.converted)} become {spec.dtype} as they are read: no backend "
        "multiplies by them as they are"
    )
    return replace(spec, notes=(*spec.notes, note))


def gguf_name(metadata: Mapping[str, GgufValue], path: Path) -> str:
    """What the model in the file ``path``, of this ``metadata``, is called: as the file, without
    its quantization and the number of its part; or as it says itself, where a file's name says
    nothing."""
    file = path.stem if path.suffix == SUFFIX else path.name
    part = PartName.parse(path.name)
    whole = file if part is None else part.stem
    name = re.sub(f"{_QUANTIZATION}$", "", whole, flags=re.IGNORECASE)
    if name and re.fullmatch(_NO_NAME, name, re.IGNORECASE) is None:
        return name
    for key in ("general.name", "general.basename"):
        said = metadata.get(key)
        if isinstance(said, str) and said.strip() and len(said) <= _MAX_NAME:
            return said.strip()
    return file


def _small(model: GgufModel, name: str) -> tuple[float, ...] | None:
    """The values of a small tensor of floats; None where there is none."""
    if name not in model.tensors:
        return None
    file, tensor = model.tensors[name]
    if tensor.element is None or len(tensor.shape) != 1 or tensor.shape[0] > _MAX_SMALL:
        return None
    return shortest_decimals(file.view(name).astype(np.float32))
