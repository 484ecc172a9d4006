"""What the CPU backend has to know of a quantization scheme, and where matrices of one go."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

from penstock.backends.cpu.interface import NativeExecutor
from penstock.backends.cpu.native_ops import MatrixId
from penstock.interface.weights import WeightValue
from penstock.plan.ops import ExpertLinear, Linear, WeightName

Product = Linear | ExpertLinear


@dataclass(frozen=True)
class MatrixPart:
    """The place of one weight's rows in a matrix, which may join several weights."""

    native: NativeExecutor
    matrix: MatrixId
    first: int
    """The matrix's row that is the weight's first."""
    name: WeightName
    before: tuple[int, ...] = ()
    """The rows of each weight that the matrix has in front of it."""

    def behind(self, rows: int) -> MatrixPart:
        """The part without its first rows."""
        return replace(self, first=self.first + rows)


class MatrixForm(ABC):
    """How matrices of one scheme get into the native executor."""

    @abstractmethod
    def __str__(self) -> str:
        """The form's name, by which products of one kind are tuned together."""

    @abstractmethod
    def add(self, native: NativeExecutor, op: Product, experts: int) -> MatrixId:
        """Reserve memory for the matrices of ``op``, one for each expert; raises ValueError where
        no kernel has them."""

    @abstractmethod
    def pack(self, part: MatrixPart, value: WeightValue) -> None:
        """Pack ``value`` ``[rows, k]`` as ``part``.

        Raises WeightError, naming the weight, where it is to be rounded and has a value that is not
        finite.
        """

    def pack_from(self, part: MatrixPart, value: WeightValue, first: int) -> None:
        """Pack rows of ``part`` from ``first`` on, likewise."""
        self.pack(part.behind(first), value)
