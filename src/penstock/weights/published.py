"""Opens the files of a published checkpoint: of a model, or of heads that draft."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from penstock.errors import WeightError
from penstock.weights.safetensors import INDEX, SINGLE, SafetensorsFile, member, open_folder
from penstock.weights.tensor_file import Tensor, TensorFile
from penstock.weights.torch_file import TorchFile

_MEDUSA: Final = "medusa_lm_head.safetensors"
PICKLED: Final = ("medusa_lm_head.pt", "pytorch_model.bin")
"""Files of ``torch.save`` that are read where there are no safetensors."""

_PREFIXES: Final = re.compile(r"(medusa_head|model)\.")


def open_draft_heads(folder: Path) -> dict[str, tuple[TensorFile, Tensor]]:
    """Every tensor of a checkpoint of heads, by a name in which makers do not differ.

    That is without ``model.`` or ``medusa_head.``, and with ``layers.0.`` for the one layer, which
    EAGLE 3 calls ``midlayer.``. Raises WeightError.
    """
    found: dict[str, tuple[TensorFile, Tensor]] = {}
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


def _open(folder: Path) -> dict[str, tuple[TensorFile, Tensor]]:
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
