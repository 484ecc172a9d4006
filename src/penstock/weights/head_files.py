"""The files of published heads that draft, and the names that weights have in them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from penstock.errors import WeightError
from penstock.models.heads import HeadsSpec, MedusaSpec
from penstock.weights.mapping import checkpoint_name
from penstock.weights.safetensors import INDEX, SINGLE, SafetensorsFile, member, open_folder
from penstock.weights.tensor_file import Tensor, TensorFile
from penstock.weights.torch_file import TorchFile

Found = dict[str, tuple[TensorFile, Tensor]]

_MEDUSA: Final = "medusa_lm_head.safetensors"
PICKLED: Final = ("medusa_lm_head.pt", "pytorch_model.bin")
"""Files of ``torch.save`` that are read where there are no safetensors."""

_PREFIXES: Final = re.compile(r"(medusa_head|model)\.")
_MEDUSA_NAME: Final = re.compile(r"heads\.(\d+)\.(?:blocks\.(\d+)\.fc(\.bias)?|head)")
_IDLE: Final = re.compile(r"(layers\.0\.self_attn\.)?rotary_emb\.inv_freq")

DRAFT_TO_TARGET: Final = "d2t"
TARGET_IN_DRAFT: Final = "t2d"
"""Name of the tensor that says which tokens of the target's vocabulary can be drafted; the inverse
of ``d2t``."""


def open_heads(folder: Path) -> Found:
    """Every tensor of a checkpoint of heads, by a name in which makers do not differ.

    That is without ``model.`` or ``medusa_head.``, and with ``layers.0.`` for the one layer, which
    EAGLE 3 calls ``midlayer.``. Raises WeightError.
    """
    found: Found = {}
    for stored, (file, tensor) in _open(folder).items():
        name = _PREFIXES.sub("", stored, count=1) if _PREFIXES.match(stored) else stored
        if name.startswith("midlayer."):
            name = "layers.0." + name.removeprefix("midlayer.")
        if name in found:
            raise WeightError(
                f"{file.path} has {found[name][1].name!r} and {stored!r}, which are one weight; "
                "take the heads from the original again"
            )
        found[name] = file, tensor
    return found


def stored_name(spec: HeadsSpec, name: str) -> str:
    """How :func:`open_heads` names a canonical weight."""
    if not isinstance(spec, MedusaSpec):
        return checkpoint_name(name).removeprefix("model.")
    match = _MEDUSA_NAME.fullmatch(name)
    if match is None:
        raise KeyError(name)
    head, block, bias = match.groups()
    if block is None:
        return f"{head}.{spec.num_blocks}.weight"
    return f"{head}.{block}.linear.{'bias' if bias else 'weight'}"


def is_idle(spec: HeadsSpec, name: str) -> bool:
    """Whether a tensor is none that the plan reads, and yet belongs there."""
    if isinstance(spec, MedusaSpec):
        return False
    mapped = spec.kind == "eagle3" and name in (DRAFT_TO_TARGET, TARGET_IN_DRAFT)
    return mapped or _IDLE.fullmatch(name) is not None


def _open(folder: Path) -> Found:
    if any((folder / name).exists() for name in (SINGLE, INDEX)):
        return open_folder(folder)
    if (folder / _MEDUSA).exists():
        single = SafetensorsFile(member(folder, _MEDUSA, None))
        return {name: (single, tensor) for name, tensor in single.tensors.items()}
    for pickled in PICKLED:
        if (folder / pickled).exists():
            file = TorchFile(member(folder, pickled, None))
            return {name: (file, tensor) for name, tensor in file.tensors.items()}
    if not folder.is_dir():
        raise WeightError(f"{folder} is not a folder")
    raise WeightError(
        f"{folder} has no weights of heads: none of {SINGLE}, {_MEDUSA}, {', '.join(PICKLED)}; "
        "download the heads again"
    )
