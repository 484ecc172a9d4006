"""Products with lattice points on the CPU, against the reference's and against themselves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.artifact_engines import start
from support.lattice_checkpoints import lattice_checkpoint, lattice_plan
from support.native_arrays import as_bytes
from support.native_row_ops import run as run_rows
from support.needs import needs_native
from support.quantized_checkpoints import LIMITS, TOKENS
from support.tiny_plans import Chunk, step_of

from penstock.backends.cpu import native
from penstock.backends.cpu.bind import bind as bind_native
from penstock.backends.cpu.turned import TurnBack, TurnRows, turned
from penstock.backends.cpu.weight_bytes import weight_bytes
from penstock.backends.reference.executor import ReferenceExecutor
from penstock.interface.executor import Executor, run
from penstock.models.spec import DType
from penstock.plan.fuse import fuse
from penstock.plan.ops import Linear
from penstock.quant.paley import paley_matrix
from penstock.quant.scheme import LatticeBits
from penstock.quant.turn import Turn
from penstock.weights.checkpoint import open_weights

pytestmark = needs_native


def logits(executor: Executor, first: int = 0, count: int = 40) -> np.ndarray[Any, Any]:
    chunk = Chunk(TOKENS[:count], 0, count, [3, 1], rows=range(first, count))
    return run(executor, step_of([chunk])).logits.copy()


@pytest.mark.parametrize("isa", native.runnable())
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("family", "bits"), [("llama", 2), ("qwen2", 3), ("llama", 4)])
def test_a_model_computes_what_the_reference_does(
    family: str, bits: LatticeBits, dtype: DType, isa: str, tmp_path: Path
) -> None:
    """Prompts and single rows, of fused and of primitive plans, with and without a bias."""
    folder = lattice_checkpoint(tmp_path / "out", bits, family)
    plain = lattice_plan(folder, dtype)
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


@pytest.mark.slow
def test_matrices_stay_in_their_codes(tmp_path: Path) -> None:
    for bits, least, most in ((2, 0.12, 0.14), (3, 0.18, 0.2), (4, 0.24, 0.27)):
        folder = lattice_checkpoint(tmp_path / str(bits), bits, "llama", hidden_size=256)
        plan = fuse(lattice_plan(folder, "bfloat16"))
        matrices = [op for op in plan.ops if isinstance(op, Linear) and op.scheme is not None]
        in_floats = sum(2 * op.k * sum(part.n for part in op.parts) for op in matrices)
        kept = replace(plan, ops=tuple(matrices))
        assert least < weight_bytes(kept) / in_floats < most


def test_what_is_joined_is_turned_once_and_turned_back_by_parts(tmp_path: Path) -> None:
    plan = turned(fuse(lattice_plan(lattice_checkpoint(tmp_path / "out", 3, "llama"), "float32")))
    kinds = [type(op) for op in plan.ops]
    layers = len(plan.spec.layers)
    assert kinds.count(TurnRows) == 4 * layers
    assert kinds.count(Linear) == 2 * 4 * layers + 1
    assert kinds.count(TurnBack) == 7 * layers


@pytest.mark.parametrize("element", ["float32", "bfloat16"])
@pytest.mark.parametrize("size", [1, 7, 8, 40, 64, 172, 344, 640, 1024])
def test_rows_are_turned_as_numpy_turns_them(module: Any, size: int, element: str) -> None:
    turn = Turn(size, 3, "input")
    x = np.random.default_rng(size).standard_normal((5, size), np.float32)

    def append(executor: Any, inputs: list[int], out: int) -> None:
        executor.append_turn_rows(x=inputs[0], out=out, **constants(executor, turn))

    expected = turn.forward(x)
    tolerance = 1e-5 if element == "float32" else 2**-7
    got = [run_rows(module, append, [x], element, threads=threads) for threads in (1, 3)]
    np.testing.assert_allclose(got[0], expected, rtol=tolerance, atol=tolerance)
    np.testing.assert_array_equal(*got)
    np.testing.assert_array_equal(run_rows(module, append, [x[2:3]], element)[0], got[0][2])


@pytest.mark.parametrize("size", [8, 40, 640])
def test_outputs_are_scaled_and_turned_back(module: Any, size: int) -> None:
    turn = Turn(size, 3, "output")
    rng = np.random.default_rng(size)
    x, second = rng.standard_normal((2, 5, size), np.float32)
    bias = rng.standard_normal(size).astype(np.float32)

    def append(executor: Any, inputs: list[int], out: int) -> None:
        executor.append_turn_back(
            x=inputs[0],
            second=inputs[1],
            out=out,
            first=0,
            by=0.25,
            scale=executor.add_constant(as_bytes(np.array([3], np.float32))),
            bias=executor.add_constant(as_bytes(bias)),
            **constants(executor, turn),
        )

    expected = turn.back(3 * (x + second / 4)) + bias
    got = run_rows(module, append, [x, second])
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


def test_turns_that_do_not_fit_are_refused(executor: Any) -> None:
    a = executor.add_buffer(0, "float32", 40, 160, "T")
    out = executor.add_buffer(4096, "float32", 40, 160, "T")
    narrow = executor.add_buffer(8192, "float32", 24, 96, "T")
    selected = executor.add_buffer(8192, "float32", 40, 160, "S")
    turn = constants(executor, Turn(40, 0, "input"))
    short = constants(executor, Turn(24, 0, "input"))
    one = executor.add_constant(as_bytes(np.ones(1, np.float32)))
    rest = {"second": None, "first": 0, "by": 0.0, "scale": one, "bias": None}
    refused: list[tuple[dict[str, Any], str]] = [
        ({"x": narrow}, "shape of what is turned"),
        ({"x": selected}, "shape of what is turned"),
        ({"x": out}, "same memory"),
        ({"signs": short["signs"]}, "signs of a turn"),
        ({"doubled": 3}, "blocks that are no part"),
        ({"doubled": 64}, "blocks that are no part"),
        ({"base": 0}, "blocks that are no part"),
        ({"base_matrix": one}, "a base of turns"),
    ]
    for change, message in refused:
        with pytest.raises(ValueError, match=message):
            executor.append_turn_rows(**{"x": a, "out": out, **turn, **change})
    for change, message in (
        ({"first": 1}, "no such columns"),
        ({"x": selected}, "no such columns"),
        ({"second": narrow}, "no such columns"),
        ({"by": float("nan")}, "finite number"),
        ({"bias": one}, "a bias"),
        ({"scale": turn["signs"]}, "a scale"),
    ):
        with pytest.raises(ValueError, match=message):
            executor.append_turn_back(**{"x": a, "out": out, **rest, **turn, **change})
    executor.append_turn_rows(x=a, out=out, **turn)
    executor.append_turn_back(x=a, out=out, **rest, **turn)
    assert executor.op_names == ["TurnRows", "TurnBack"]


def constants(executor: Any, turn: Turn) -> dict[str, Any]:
    """A turn as ops take it."""
    matrix = paley_matrix(turn.base)
    if matrix is not None and turn.side == "input":
        matrix = matrix.T
    floats = None if matrix is None else np.ascontiguousarray(matrix, np.float32)
    return {
        "signs": executor.add_constant(as_bytes(turn.signs)),
        "doubled": turn.doubled,
        "base": turn.base,
        "base_matrix": None if floats is None else executor.add_constant(as_bytes(floats)),
    }


@pytest.mark.parametrize("bits", [2, 3, 4])
def test_packed_points_are_restored_to_the_same_bits(bits: LatticeBits, tmp_path: Path) -> None:
    folder = lattice_checkpoint(tmp_path / "model", bits, "qwen2")
    first = start(folder, tmp_path / "engines")
    assert first.phases == ["open weights", "pack weights", "keep artifact"]
    second = start(folder, tmp_path / "engines")
    assert second.phases == ["restore weights"]
    assert second.logits == first.logits
