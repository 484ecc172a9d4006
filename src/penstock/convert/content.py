"""What a new file is to hold: its metadata and its tensors, from wherever the model comes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.interface.sources import Shape

Values = NDArray[np.float32]


@dataclass(frozen=True)
class Part:
    """Whole rows of a tensor, ``[rows, columns]``."""

    first: int
    """The first of them, where the tensor is one matrix, its dimensions but the last one below
    another."""
    values: Values


@dataclass(frozen=True)
class SourceTensor:
    """A tensor that is to be written."""

    name: str
    shape: Shape
    stored: str | None
    """The type that it has in the source, if its bytes can be taken over as they are."""


class Content(ABC):
    """A model as a GGUF file holds it, but for the types of its tensors."""

    tensors: Sequence[SourceTensor]
    notes: tuple[str, ...]
    """What users should know of what the file cannot say."""
    metadata: Mapping[str, object]
    """What the file is to say, by its keys."""

    @abstractmethod
    def pairs(self) -> Mapping[str, bytes]:
        """The metadata by key, as the bytes of :func:`penstock.gguf.writing.pair`."""

    @abstractmethod
    def rounded_again(self, types: Mapping[str, str]) -> str | None:
        """A note if a tensor that was quantized before is rounded once more where each, by its
        name, is written in one of ``types``; what becomes F32 is not rounded."""

    @abstractmethod
    def parts(self, tensor: SourceTensor) -> Iterator[Part]:
        """The values of a tensor, some rows at a time, every row once."""

    @abstractmethod
    def stored_bytes(self, tensor: SourceTensor) -> NDArray[Any]:
        """The bytes of a tensor in the type that it has in the source.

        Raises WeightError where its values are not finite.
        """
