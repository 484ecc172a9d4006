"""Products with codebooks of rows on the CPU, against the reference's and against themselves.

``csrc/bench/kernels_check.cpp`` compares every kernel with scalar code.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.artifact_engines import start
from support.codebook_checkpoints import codebook_checkpoint, codebook_plan
from support.native_arrays import as_bytes
from support.native_products import DTYPES
from support.needs import needs_native
from support.quantized_checkpoints import LIMITS, TOKENS
from support.tiny_plans import Chunk, step_of

from penstock.backends.cpu import native
from penstock.backends.cpu.bind import bind as bind_native
from penstock.backends.cpu.weight_bytes import weight_bytes
from penstock.backends.reference.executor import ReferenceExecutor
from penstock.backends.reference.numerics import activate
from penstock.interface.executor import Executor, run
from penstock.models.spec import DType
from penstock.plan.fuse import fuse
from penstock.plan.lower import lower
from penstock.plan.ops import Linear
from penstock.quant import CodebookMatrix, CodebookScheme
from penstock.quant.scheme import CodebookBits
from penstock.quantize.forms.words import words
from penstock.weights.checkpoint import open_weights
from penstock.weights.model_folder import load_model_spec

pytestmark = needs_native

DEPTHS = [1, 31, 100, 160, 161, 480, 481, 511, 512, 513, 1100, 1536]
"""Depths with every kind of lines that rows of 3 bits may end with."""


def random_matrix(
    n: int, k: int, bits: CodebookBits, part: float, rng: np.random.Generator
) -> CodebookMatrix:
    """A matrix of which about that part are outliers, some rows having none."""
    codes = words(rng.integers(0, 1 << bits, (n, k)).astype(np.uint8), bits)
    apart = (rng.random((n, k)) < part) & (rng.random((n, 1)) < 0.8)
    ends = np.concatenate([[0], np.cumsum(apart.sum(axis=1))]).astype(np.int32)
    return CodebookMatrix(
        CodebookScheme(bits, part),
        codes,
        np.sort(rng.standard_normal((n, 1 << bits)), axis=1).astype(np.float32),
        ends,
        np.nonzero(apart)[1].astype(np.int32),
        (8 * rng.standard_normal(int(ends[-1]))).astype(np.float32),
        k,
    )


@dataclass(frozen=True)
class Product:
    """Parts, joined, or gate and up by silu."""

    parts: tuple[CodebookMatrix, ...]
    values: str = "float32"
    gated: bool = False
    bias: np.ndarray | None = None

    def run(self, module: Any, x: np.ndarray, threads: int = 1) -> np.ndarray:
        total = sum(len(part.codes) for part in self.parts)
        out = np.full((len(x), (total // 2 if self.gated else total) * 4), 0xA5, np.uint8)
        module.codebook_linear(
            parts=[
                (as_bytes(part.codes), part.values, part.ends, part.columns, part.outliers)
                for part in self.parts
            ],
            bits=self.parts[0].scheme.bits,
            values=self.values,
            k=self.parts[0].k,
            bias=self.bias,
            gate="silu" if self.gated else "none",
            x=as_bytes(x),
            x_elem=x.dtype.name,
            out=out.reshape(-1),
            out_elem="float32",
            threads=threads,
        )
        return out.view(np.float32)

    def sums(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Sums in float64, and those of their terms' sizes."""
        parts = [
            replace(
                part,
                values=part.values.astype(DTYPES[self.values]).astype(np.float32),
                outliers=part.outliers.astype(DTYPES[self.values]).astype(np.float32),
            )
            for part in self.parts
        ]
        matrix = np.concatenate([part.dequantize() for part in parts]).astype(np.float64)
        taken = x.astype(np.float64)
        bias = 0.0 if self.bias is None else self.bias
        return taken @ matrix.T + bias, np.abs(taken) @ (np.abs(matrix) + 8).T + np.abs(bias)


def rows_of(rng: np.random.Generator, rows: int, k: int, dtype: str) -> np.ndarray:
    return rng.standard_normal((rows, k)).astype(DTYPES[dtype])


@pytest.mark.parametrize("bits", [3, 4])
@pytest.mark.parametrize("k", DEPTHS)
def test_sums(module: Any, k: int, bits: CodebookBits) -> None:
    rng = np.random.default_rng(k)
    for values, dtype, rows in (
        ("float32", "float32", 1),
        ("bfloat16", "float32", 2),
        ("bfloat16", "bfloat16", 1),
        ("bfloat16", "bfloat16", 7),
        ("float32", "bfloat16", 3),
    ):
        parts = tuple(random_matrix(n, k, bits, 0.02, rng) for n in (5, 28))
        bias = rng.standard_normal(33).astype(np.float32) if rows % 2 else None
        product = Product(parts, values, bias=bias)
        x = rows_of(rng, rows, k, dtype)
        sums, sizes = product.sums(x)
        got = product.run(module, x, 2)
        np.testing.assert_array_less(np.abs(got - sums), sizes * 2.0**-23 * 8 + 1e-20)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("bits", [3, 4])
def test_a_row_has_the_same_bits_in_any_batch(module: Any, bits: CodebookBits, dtype: str) -> None:
    rng = np.random.default_rng(1)
    k = 2200  # several slices
    parts = tuple(random_matrix(24, k, bits, 0.01, rng) for _ in range(2))
    x = rows_of(rng, 70, k, dtype)
    for gated in (False, True):
        product = Product(parts, "bfloat16", gated)
        whole = product.run(module, x)
        for rows, threads in ((1, 1), (2, 1), (3, 2), (4, 1), (5, 2), (33, 2), (70, 2)):
            some = product.run(module, x[70 - rows :], threads)
            assert np.array_equal(some.view(np.uint32), whole[70 - rows :].view(np.uint32))


def test_gates(module: Any) -> None:
    rng = np.random.default_rng(2)
    product = Product(tuple(random_matrix(20, 300, 4, 0.01, rng) for _ in range(2)), gated=True)
    x = rows_of(rng, 5, 300, "float32")
    gate, up = np.split(product.sums(x)[0].astype(np.float32), 2, axis=1)
    np.testing.assert_allclose(
        product.run(module, x), activate(gate, "silu") * up, rtol=1e-3, atol=1e-3
    )


def test_instruction_sets_that_multiply_floats_have_the_same_bits() -> None:
    """With fused multiply-adds, which the least of x86-64 has not."""
    rng = np.random.default_rng(3)
    product = Product((random_matrix(20, 700, 3, 0.02, rng),))
    x = rows_of(rng, 6, 700, "float32")
    found = [
        product.run(native.load(isa), x).view(np.uint32)
        for isa in native.runnable()
        if isa != "baseline"
    ]
    assert all(np.array_equal(each, found[0]) for each in found)


def test_what_does_not_fit_is_refused(executor: Any) -> None:
    rng = np.random.default_rng(4)
    own = random_matrix(8, 64, 4, 0.1, rng)
    shape = {"bits": 4, "values": "float32", "n": 8, "k": 64, "gated": False}
    for change, message in (
        ({"bits": 2}, "3 or 4 bits"),
        ({"values": "float16"}, "float32 or bfloat16"),
        ({"k": (1 << 16) + 1}, "65536"),
        ({"outliers": -1}, "outliers"),
    ):
        with pytest.raises(ValueError, match=message):
            executor.add_codebook_matrix(**{**shape, "outliers": 0, **change})
    count = len(own.columns)
    matrix = executor.add_codebook_matrix(**shape, outliers=count)
    rest = {
        "codes": as_bytes(own.codes),
        "values": own.values,
        "ends": own.ends,
        "columns": own.columns,
        "outliers": own.outliers,
        "first_outlier": 0,
    }
    falling = own.ends.copy()
    falling[1] = count + 1
    for changes, message in (
        ({"first_outlier": 1}, "do not lie in its matrix"),
        ({"first_outlier": -1}, "do not lie in its matrix"),
        ({"columns": own.columns + 64}, "do not lie in its matrix"),
        ({"columns": own.columns * 0 - 1}, "do not lie in its matrix"),
        ({"ends": falling}, "do not lie in its matrix"),
        ({"ends": own.ends[1:]}, "those of its rows"),
        ({"codes": as_bytes(own.codes[1:])}, "those of its rows"),
        ({"outliers": own.outliers[1:]}, "those of its rows"),
    ):
        with pytest.raises(ValueError, match=message):
            executor.pack_codebook_rows(matrix, 0, **{**rest, **changes})
    executor.pack_codebook_rows(matrix, 0, **rest)


def logits(executor: Executor, first: int = 0, count: int = 40) -> np.ndarray[Any, Any]:
    chunk = Chunk(TOKENS[:count], 0, count, [3, 1], rows=range(first, count))
    return run(executor, step_of([chunk])).logits.copy()


@pytest.mark.parametrize("isa", native.runnable())
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("family", "bits"), [("llama", 3), ("qwen2", 4)])
def test_a_model_computes_what_the_reference_does(
    family: str, bits: CodebookBits, dtype: DType, isa: str, tmp_path: Path
) -> None:
    """Prompts and single rows, of fused and of primitive plans, with and without a bias."""
    folder = codebook_checkpoint(tmp_path / "out", bits, family)
    plain = codebook_plan(folder, dtype)
    weights = open_weights(folder, plain.spec, plain.weights, dtype)
    expected = logits(ReferenceExecutor(plain, weights, LIMITS))
    got = []
    for plan in (plain, fuse(plain)):
        executor = bind_native(plan, weights, LIMITS, native.load(isa))
        got.append(logits(executor))
        # A row has the same bits in steps of other sizes.
        for count in (1, 2, 5, 17):
            assert np.array_equal(logits(executor, 0, count), got[-1][:count])
        executor.close()
    assert np.array_equal(*got)
    error = np.square(got[0] - expected).mean() / np.square(expected).mean()
    assert error < (1e-8 if dtype == "float32" else 1e-3)


def test_the_values_are_those_of_the_decoded_matrix(tmp_path: Path) -> None:
    folder = codebook_checkpoint(tmp_path / "out", 3, "llama")
    kept, decoded = codebook_plan(folder, "float32"), lower(load_model_spec(folder), "float32")
    as_stored = open_weights(folder, kept.spec, kept.weights, "float32")
    floats = open_weights(folder, decoded.spec, decoded.weights, "float32")
    for name in kept.weights:
        value = as_stored.get(name)
        if isinstance(value, CodebookMatrix):
            assert np.array_equal(value.dequantize(), floats.get(name))
            some = value.rows((3, 5), (0, 2)).dequantize()
            assert np.array_equal(some, value.dequantize()[[3, 4, 0, 1]])
    assert any(isinstance(as_stored.get(name), CodebookMatrix) for name in kept.weights)


@pytest.mark.slow
def test_matrices_stay_in_their_codes(tmp_path: Path) -> None:
    for bits, least, most in ((3, 0.2, 0.26), (4, 0.25, 0.34)):
        folder = codebook_checkpoint(tmp_path / str(bits), bits, "llama", hidden_size=512)
        plan = fuse(codebook_plan(folder, "bfloat16"))
        matrices = [op for op in plan.ops if isinstance(op, Linear) and op.scheme is not None]
        in_floats = sum(2 * op.k * sum(part.n for part in op.parts) for op in matrices)
        kept = replace(plan, ops=tuple(matrices))
        assert least < weight_bytes(kept) / in_floats < most


@pytest.mark.parametrize("bits", [3, 4])
def test_packed_codebooks_are_restored_to_the_same_bits(bits: CodebookBits, tmp_path: Path) -> None:
    folder = codebook_checkpoint(tmp_path / "model", bits, "qwen2")
    first = start(folder, tmp_path / "engines")
    assert first.phases == ["open weights", "pack weights", "keep artifact"]
    second = start(folder, tmp_path / "engines")
    assert second.phases == ["restore weights"]
    assert second.logits == first.logits
