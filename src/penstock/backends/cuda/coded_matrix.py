"""What matrices on the GPU have in common, and those whose weights are codes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from numpy.typing import NDArray
from torch import Tensor

from penstock.backends.cuda import rounding
from penstock.backends.cuda.kernels import launch
from penstock.backends.cuda.kernels.tiles import Tile
from penstock.backends.cuda.kernels.weights import Weights
from penstock.backends.cuda.packing import pack_planes, pad_columns
from penstock.backends.cuda.workspace import Workspace
from penstock.interface.weights import QuantizedTensor
from penstock.models.spec import Gating
from penstock.quant import not_finite

Array = NDArray[Any]


@dataclass(frozen=True)
class Shape:
    """Dimensions of an op's matrix: out has n columns, x has k, and a step has at most ``max_rows``
    rows."""

    n: int
    k: int
    max_rows: int
    gated: bool = False
    of: int | None = field(default=None, kw_only=True)
    """Columns of the product of which this is a rank's; None: it has all."""

    parts: tuple[int, ...] = field(default=(), kw_only=True)
    """Rows of the matrices that W has one behind the other; (): there is one."""

    @property
    def whole_n(self) -> int:
        """The columns that choose how K is split: those of all ranks together."""
        return self.n if self.of is None else self.of

    @property
    def weight_rows(self) -> int:
        """Rows of W: with a gate, n of the gate and then n of the other factor."""
        return self.n * (2 if self.gated else 1)


class Matrix(Protocol):
    """The weights of one ``plan.ops.Linear``."""

    shape: Shape
    weights: Weights

    @property
    def nbytes(self) -> int:
        """Device memory of the weights, padding included; scratch is the workspace's."""
        ...

    def tile(self, rows: int) -> Tile | None:
        """Return the tile of a product of ``rows`` rows; None where torch multiplies."""
        ...

    def fill(self, first_row: int, part: Tensor, name: str) -> None:
        """Keep ``part`` ``[rows, k]``, of any floating type and device, as rows from ``first_row``.

        Raises WeightError, naming ``name``, where the scheme cannot quantize a value.
        """
        ...

    def fill_quantized(
        self, first_row: int, part: QuantizedTensor, name: str, put: Callable[[Array], Tensor]
    ) -> None:
        """Likewise, of what is quantized already; ``put`` sends an array to the device.

        Raises ValueError where the matrix does not keep such tensors as they are.
        """
        raise ValueError(f"{name} is stored as {part.scheme}, which no GPU kernel reads as it is")

    def product(self, x: Tensor, out: Tensor, bias: Tensor | None, gated: Gating | None) -> None:
        """``out = act(x @ W.T + bias)`` as ``plan.ops.Linear`` defines it.

        x ``[rows, k]`` and out ``[rows, n]``, in float32, bfloat16 or float16, elements of a row
        adjacent; bias float32 ``[weight_rows]``. ``gated`` is given if and only if the shape is
        gated.
        """
        ...


class CodedMatrix(Matrix):
    """Weights as codes, multiplied by this project's kernels.

    Products with int8 activations are equal to the reference's. The others do not depend on the
    number of rows.
    """

    def __init__(
        self, shape: Shape, weights: Weights, workspace: Workspace, x_dtype: torch.dtype
    ) -> None:
        self.shape, self.weights, self._workspace = shape, weights, workspace
        self._x_dtype = x_dtype
        workspace.reserve(launch.scratch(weights, shape, x_dtype, workspace.capability))

    @property
    def nbytes(self) -> int:
        return self.weights.nbytes

    def tile(self, rows: int) -> Tile | None:
        at = self._workspace.capability
        return launch.tile_of(self.weights, self.shape, self._x_dtype, rows, at)

    def product(self, x: Tensor, out: Tensor, bias: Tensor | None, gated: Gating | None) -> None:
        check(self.shape, x, out, bias, gated)
        launch.product(self.weights, self.shape, x, out, bias, gated, self._workspace)


class RoundedMatrix(CodedMatrix, ABC):
    """Weights that are rounded to codes."""

    def fill(self, first_row: int, part: Tensor, name: str) -> None:
        finite = []
        for some in rounding.slices(len(part), self.shape.k):
            to = slice(first_row + some.start, first_row + some.stop)
            codes, all_finite = self._keep(part[some].to(self._workspace.device), to)
            self.weights.w[to] = packed_codes(codes, self.weights)
            finite.append(all_finite)
        _require(finite, name)

    @abstractmethod
    def _keep(self, rows: Tensor, to: slice) -> tuple[Tensor, Tensor]:
        """Round ``rows`` and keep their scales as those of rows ``to``; codes ``[rows, k]``, and
        whether all values are finite."""


def check(shape: Shape, x: Tensor, out: Tensor, bias: Tensor | None, gated: Gating | None) -> None:
    """Raise ValueError where a product's arrays are not what the matrix multiplies."""
    rows = len(x)
    if x.shape != (rows, shape.k) or out.shape != (rows, shape.n) or rows > shape.max_rows:
        raise ValueError(
            f"x {tuple(x.shape)} and out {tuple(out.shape)} do not go with a matrix of "
            f"n {shape.n}, k {shape.k} and at most {shape.max_rows} rows"
        )
    if (rows and shape.k > 1 and x.stride(1) != 1) or (rows and shape.n > 1 and out.stride(1) != 1):
        raise ValueError("the elements of a row of x and out must be adjacent")
    if bias is not None and (bias.shape != (shape.weight_rows,) or bias.dtype != torch.float32):
        raise ValueError(f"bias must be float32 [{shape.weight_rows}]")
    if (gated is not None) != shape.gated:
        raise ValueError("a gate must be given if and only if the matrix has two parts for it")


def packed_codes(codes: Tensor, weights: Weights) -> Tensor:
    padded = pad_columns(codes, weights.padded)
    if weights.w.dtype == torch.int8:
        return padded
    return pack_planes(padded, weights.bits, weights.plane)


def _require(finite: list[Tensor], name: str) -> None:
    if finite and not torch.stack(finite).all().item():
        raise not_finite(name)
