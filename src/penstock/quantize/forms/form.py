"""What a matrix becomes: values that few bits hold, in tensors that readers of a format know."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from numpy.typing import NDArray

from penstock.quantize.grid import F32

Arrays = Mapping[str, NDArray[Any]]
"""The tensors of a matrix, by what follows its module's name and a dot."""


class Coded(Protocol):
    """A matrix that has been rounded."""

    def dequantize(self) -> F32:
        """What its codes stand for, ``[n, k]``."""
        ...

    def arrays(self) -> Arrays: ...


class Forms(Protocol):
    """How the matrices of a checkpoint's layers are stored, all of them alike or not."""

    @property
    def group_size(self) -> int | None:
        """Columns of a row that belong together, and must divide it; None: any number does."""
        ...

    def config(self, by_index: bool, floats: Sequence[str]) -> dict[str, object]:
        """``quantization_config``, where all matrices of layers are in this form, but for those of
        the modules ``floats``.

        ``by_index``: whether groups may be of any columns. Raises ConfigError for what the format
        does not have.
        """
        ...


class Form(Forms, Protocol):
    """How all matrices of a checkpoint's layers are rounded and stored."""

    def of_joined(self, matrices: Sequence[F32]) -> Form:
        """The form of matrices that engines may multiply as one, where they share something."""
        ...

    def round(self, matrix: F32, name: str) -> Coded:
        """Round a matrix ``[n, k]`` to the nearest values. Raises WeightError, naming it, where it
        has values that cannot be held."""
        ...
