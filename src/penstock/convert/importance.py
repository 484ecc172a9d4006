"""Importance matrices: how strong the inputs of each matrix of a model are, column by column."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from penstock.convert.types import FileType
from penstock.errors import ConfigError
from penstock.gguf.writing import NewValue
from penstock.interface.sources import Shape
from penstock.quant.encode import ENCODERS

_UNWEIGHTED: Final = "Q8_0"
"""The type of blocks whose scale is not searched for."""
_HEAD, _EMBEDDING = "output.weight", "token_embd.weight"
_LAYERS: Final = "blk."
_LEAST: Final = np.float32(1e-6)
"""What a column counts at least, beside the mean of all: then no sum of weights is 0."""
_NAME_BYTES: Final = 127
"""What other programs keep of a name."""
REMEDY: Final = "make one for this model with llama-imatrix"

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Importance:
    """The mean squares of the inputs of matrices, as llama.cpp's tools measure them: by so much
    the squared error of a weight's column counts where the matrix is rounded."""

    path: Path
    means: Mapping[str, Floats]
    """By the names of tensors, finite and not below 0: those of all columns, of a tensor of
    experts those of one expert behind the other."""
    chunks: int
    """How many pieces of text were run."""
    datasets: tuple[str, ...]
    """The names of the texts."""

    @property
    def values(self) -> Mapping[str, NewValue]:
        """Metadata of a file that it was used for."""
        said: dict[str, NewValue] = {"quantize.imatrix.file": _cut(self.path.name)}
        if self.datasets:
            said["quantize.imatrix.dataset"] = _cut(self.datasets[0])
        said["quantize.imatrix.entries_count"] = len(self.means)
        if self.chunks > 0:
            said["quantize.imatrix.chunks_count"] = self.chunks
        return said

    def weights(self, tensors: Mapping[str, tuple[str, Shape]], tied: bool) -> Mapping[str, Floats]:
        """What the columns of a model's tensors count, by name, float32 ``[matrices, columns]`` (a
        tensor of experts is a stack of matrices): above 0, and each row of a mean near 1.

        The types and shapes of ``tensors`` are given by name. Where the output matrix is the
        embedding (``tied``), that has its weights. Raises ConfigError, naming the tensor, where a
        matrix of a layer that is rounded to blocks has no entry or one of another size, and where
        an entry is of no tensor.
        """
        means = dict(self.means)
        if tied and _HEAD in means:
            means.setdefault(_EMBEDDING, means.pop(_HEAD))
        weights: dict[str, Floats] = {}
        for name, (kind, shape) in tensors.items():
            found = means.pop(name, None)
            if found is None:
                if name.startswith(_LAYERS) and kind in ENCODERS and kind != _UNWEIGHTED:
                    raise ConfigError(
                        f"importance matrix {self.path} has no entry for {name}, which is to be "
                        f"in {kind}: it is of another model, or of too little text; {REMEDY}"
                    )
                continue
            matrices, columns = int(np.prod(shape[:-2], dtype=np.int64)), shape[-1]
            if found.size != matrices * columns:
                wanted = f"{matrices} x {columns}" if matrices > 1 else f"{columns}"
                raise ConfigError(
                    f"importance matrix {self.path} has {found.size} values for {name}, which has "
                    f"{wanted} columns: it is of another model; {REMEDY}"
                )
            weights[name] = normalized(found.reshape(matrices, columns))
        for name in means:
            raise ConfigError(
                f"importance matrix {self.path} has an entry for {name}, which the model has "
                f"not: it is of another model; {REMEDY}"
            )
        return weights


def require_used(importance: Importance, wanted: FileType) -> None:
    """Raise ConfigError for a type of files that has no use for importance."""
    if wanted.matrix not in ENCODERS or wanted.matrix == _UNWEIGHTED:
        raise ConfigError(
            f"files of type {wanted.name} have no use for the importance matrix {importance.path}; "
            "leave out --imatrix, or take a type such as q4_k_m"
        )


def normalized(means: Floats) -> Floats:
    """Mean squares ``[matrices, columns]``, each row divided by its mean, and no number below a
    least one; a row of zeros becomes one of ones."""
    of_rows = means.astype(np.float64).mean(axis=1, keepdims=True)
    some = of_rows > 0
    relative = np.where(some, means / np.where(some, of_rows, 1), 1)
    return np.maximum(relative.astype(np.float32), _LEAST)


def _cut(text: str) -> str:
    return text.encode()[:_NAME_BYTES].decode(errors="ignore")
