"""How the CPU backend packs matrices in codebooks of rows."""

from __future__ import annotations

from typing import Final

from penstock.backends.cpu.arrays import as_bytes
from penstock.backends.cpu.interface import NativeExecutor
from penstock.backends.cpu.matrix_form import MatrixForm, MatrixPart, Product
from penstock.backends.cpu.native_ops import MatrixId
from penstock.interface.weights import WeightValue
from penstock.models.spec import DType
from penstock.quant import CodebookMatrix, CodebookScheme

_RUN_BYTES: Final = 8
"""What says where the outliers of a row are, and how many."""
_OUTLIER_BYTES: Final = 6


class CodebookForm(MatrixForm):
    """Codes into the values of each row, and outliers beside them: in bfloat16, the values too,
    where that is the plan's type, else in float32 (``csrc/kernels/gemm_codebook_panels.h``)."""

    def __init__(self, scheme: CodebookScheme, dtype: DType) -> None:
        self._scheme = scheme
        self._values: DType = "bfloat16" if dtype == "bfloat16" else "float32"

    def __str__(self) -> str:
        return str(self._scheme)

    def nbytes(self, n: int, k: int) -> int:
        """The bytes of an ``[n, k]`` matrix, but for what pads whole panels."""
        size = 2 if self._values == "bfloat16" else 4
        row = self._row_bytes(k) + (size << self._scheme.bits) + _RUN_BYTES
        return n * row + _OUTLIER_BYTES * self._scheme.outlier_count(n, k)

    def _row_bytes(self, k: int) -> int:
        """Lines of 64 bytes have 128 codes of 4 bits; of 3 bits three have 512, and those that are
        left over 160 each."""
        if self._scheme.bits == 4:
            return -(-k // 128) * 64
        whole, left = divmod(k, 512)
        return 64 * (3 * whole + (3 if left > 480 else -(-left // 160)))

    def add(self, native: NativeExecutor, op: Product, experts: int) -> MatrixId:
        if experts != 1:
            raise ValueError(f"no kernel has matrices of experts in {self}")
        return native.add_codebook_matrix(
            bits=self._scheme.bits,
            values=self._values,
            n=op.n,
            k=op.k,
            gated=op.gated is not None,
            outliers=sum(self._scheme.outlier_count(part.n, op.k) for part in op.parts),
        )

    def pack(self, part: MatrixPart, value: WeightValue) -> None:
        if not isinstance(value, CodebookMatrix) or value.scheme != self._scheme:
            raise ValueError(f"{part.name} is no matrix in {self}, and nothing rounds to that")
        part.native.pack_codebook_rows(
            part.matrix,
            part.first,
            as_bytes(value.codes),
            value.values,
            value.ends,
            value.columns,
            value.outliers,
            sum(self._scheme.outlier_count(n, value.k) for n in part.before),
        )

    def pack_from(self, part: MatrixPart, value: WeightValue, first: int) -> None:
        if first:  # how many outliers the rows before have is not known
            raise ValueError(f"{part.name} is packed as a whole")
        self.pack(part, value)
