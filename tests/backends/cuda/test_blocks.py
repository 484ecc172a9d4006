"""Matrices in blocks on the device: products and lookups, beside what the formats' decoders say."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from backends.cuda.ptx import Assembly
from numpy.typing import NDArray
from support.blocks import random_blocks

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="triton is not installed")

from support.cuda_experts import Experts, Form, draw_ids  # noqa: E402

from penstock.backends.cuda.block_layouts import BLOCK_LAYOUTS  # noqa: E402
from penstock.backends.cuda.block_matrix import BlockTable  # noqa: E402
from penstock.backends.cuda.kernels import tiles  # noqa: E402
from penstock.backends.cuda.kernels.block_operands import _assembly  # noqa: E402
from penstock.backends.cuda.kernels.embed_blocks import embed_blocks  # noqa: E402
from penstock.backends.cuda.matrix import Matrix, Shape, make_matrix  # noqa: E402
from penstock.backends.cuda.workspace import Workspace  # noqa: E402
from penstock.backends.reference.numerics import activate  # noqa: E402
from penstock.models.spec import Activation  # noqa: E402
from penstock.quant import BlockTensor  # noqa: E402
from penstock.quant.formats import GGUF_FORMATS  # noqa: E402
from penstock.quant.formats.code_books import E2M1_VALUES, IQ4_VALUES  # noqa: E402

F32 = NDArray[np.float32]

LEAST = {name for name, form in BLOCK_LAYOUTS.items() if form.least}


def blocks_of(name: str, n: int, k: int, seed: int = 1) -> BlockTensor:
    """Random whole blocks, of at least k columns."""
    columns = GGUF_FORMATS[name].scheme.columns
    return random_blocks(name, n, -(-k // columns) * columns, np.random.default_rng(seed))


def drawn(rows: int, k: int, seed: int = 0) -> F32:
    """Numbers that 16 bits of either kind hold, a few of them far out."""
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((rows, k)) * np.where(rng.random(k) < 0.02, 40, 1)
    return values.astype(ml_dtypes.bfloat16).astype(np.float32)


def put(device: Any) -> Any:
    return lambda array: torch.from_numpy(array.copy()).to(device)


def matrix_of(
    tensor: BlockTensor, device: Any, max_rows: int = 70, gated: bool = False,
    x_dtype: Any = torch.bfloat16,
) -> Matrix:  # fmt: skip
    n, k = tensor.shape
    shape = Shape(n // (2 if gated else 1), k, max_rows, gated)
    matrix = make_matrix(
        shape, "bfloat16", tensor.scheme, Workspace(device), x_dtype, weight_only=True
    )
    cut = n // 3  # two parts, the second first
    matrix.fill_quantized(cut, tensor.rows((cut, n)), "second", put(device))
    matrix.fill_quantized(0, tensor.rows((0, cut)), "first", put(device))
    return matrix


def product(
    matrix: Matrix, x: F32, device: Any, bias: F32 | None = None, gated: Activation | None = None,
    x_dtype: Any = torch.bfloat16,
) -> F32:  # fmt: skip
    out = torch.full((len(x), matrix.shape.n), 7.0, device=device)
    of_bias = None if bias is None else torch.from_numpy(bias).to(device)
    wide = torch.full((len(x), x.shape[1] + 16), float("nan"), dtype=x_dtype, device=device)
    wide[:, :-16] = torch.from_numpy(x).to(x_dtype)
    matrix.product(wide[:, :-16], out, of_bias, gated)
    return out.cpu().numpy()


def close(got: F32, x: F32, tensor: BlockTensor, bias: F32 | None = None) -> None:
    """Float32 sums of exact products, in whichever order."""
    wide, values = x.astype(np.float64), tensor.dequantize().astype(np.float64)
    sums, sizes = wide @ values.T, np.abs(wide) @ np.abs(values).T
    if bias is not None:
        sums, sizes = sums + bias, sizes + np.abs(bias)
    error = sizes * 2.0**-24 * (x.shape[1] + 8) + 1e-20
    if tensor.scheme.format in LEAST:  # two terms may be much larger than their sum
        error = error * 8
    np.testing.assert_array_less(np.abs(got - sums), error)


@pytest.mark.parametrize("name", GGUF_FORMATS)
def test_products(name: str, device: Any) -> None:
    for n, k, rows in ((5, 32, 1), (35, 300, 3)):
        tensor, bias = blocks_of(name, n, k), drawn(1, n, 2)[0]
        x = drawn(rows, tensor.shape[1])
        close(product(matrix_of(tensor, device), x, device, bias), x, tensor, bias)


@pytest.mark.thinned(6)
@pytest.mark.parametrize("name", GGUF_FORMATS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_other_activations(name: str, dtype: Any, device: Any) -> None:
    tensor = blocks_of(name, 19, 128)
    x = drawn(2, tensor.shape[1])
    close(product(matrix_of(tensor, device, x_dtype=dtype), x, device, x_dtype=dtype), x, tensor)


@pytest.mark.thinned(6)
@pytest.mark.parametrize("name", GGUF_FORMATS)
def test_gates(name: str, device: Any) -> None:
    tensor = blocks_of(name, 2 * 21, 160)
    x = drawn(18, tensor.shape[1]) / np.float32(64)
    gate, up = (tensor.rows(run).dequantize() for run in ((0, 21), (21, 42)))
    got = product(matrix_of(tensor, device, gated=True), x, device, None, "silu")
    want = activate(x @ gate.T, "silu") * (x @ up.T)
    np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-4)


@pytest.mark.thinned(7)
@pytest.mark.parametrize("name", GGUF_FORMATS)
def test_one_program_and_many_add_splits_alike(
    name: str, device: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensor = blocks_of(name, 40, 1280)
    assert tiles.splits_of(40, tensor.shape[1])[0] > 1
    x, matrix = drawn(5, tensor.shape[1]), matrix_of(tensor, device)
    many = product(matrix, x, device)
    close(many, x, tensor)
    monkeypatch.setattr(tiles, "MAX_PARALLEL", 0)
    np.testing.assert_array_equal(product(matrix, x, device), many)


@pytest.mark.thinned(7)
@pytest.mark.parametrize("name", GGUF_FORMATS)
def test_rows_keep_to_themselves(name: str, device: Any) -> None:
    tensor = blocks_of(name, 20, 160)
    x, matrix = drawn(70, tensor.shape[1]), matrix_of(tensor, device)
    whole = product(matrix, x, device)
    for rows in (1, 17, 40):
        np.testing.assert_array_equal(product(matrix, x[-rows:], device), whole[-rows:])
    x[3, 7] = np.nan
    spoilt = product(matrix, x, device)
    others = np.arange(70) != 3
    assert np.isnan(spoilt[3]).all()
    np.testing.assert_array_equal(spoilt[others], whole[others])


@pytest.mark.parametrize("name", GGUF_FORMATS)
def test_rows_that_are_looked_up_are_the_decoders(name: str, device: Any) -> None:
    tensor = blocks_of(name, 29, 1056)
    table = BlockTable(*tensor.shape, tensor.scheme, device)
    table.fill(tensor, "embed", put(device))
    ids = torch.tensor([28, 0, 7, 7, 13], dtype=torch.int32, device=device)
    wide = torch.full((5, tensor.shape[1] + 3), 7.0, device=device)
    embed_blocks(ids, table.weights, wide[:, :-3])
    want = tensor.dequantize()[ids.cpu().numpy()]
    np.testing.assert_array_equal(wide[:, :-3].cpu().numpy(), want)
    assert (wide[:, -3:] == 7).all()


@pytest.mark.parametrize("name", ["MXFP4", "NVFP4"])
def test_all_scales_of_a_byte(name: str, device: Any) -> None:
    tensor = blocks_of(name, 256, 64)
    if name == "MXFP4":
        tensor.blocks[:, :, 0] = np.arange(256)[:, None]
    else:
        tensor.blocks[:, :, :4] = np.arange(256)[:, None, None]
    table = BlockTable(*tensor.shape, tensor.scheme, device)
    table.fill(tensor, "embed", put(device))
    out = torch.empty(tensor.shape, device=device)
    embed_blocks(torch.arange(256, dtype=torch.int32, device=device), table.weights, out)
    np.testing.assert_array_equal(out.cpu().numpy(), tensor.dequantize())


@pytest.mark.parametrize("name", GGUF_FORMATS)
def test_bytes_are_about_the_files(name: str) -> None:
    nowhere, scheme = Workspace(torch.device("meta")), GGUF_FORMATS[name].scheme
    for n, k in ((96, 1024), (33, 256)):
        matrix = make_matrix(
            Shape(n, k, 1), "bfloat16", scheme, nowhere, torch.bfloat16, weight_only=True
        )
        assert matrix.nbytes == BLOCK_LAYOUTS[name].nbytes(n, k)
        assert 1 <= matrix.nbytes / scheme.nbytes(n, k) < 1.06


@pytest.mark.parametrize("name", ["Q4_K", "Q6_K", "MXFP4"])
def test_experts_have_the_bits_of_plain_products(name: str, device: Any) -> None:
    each = tuple(blocks_of(name, 20, 256, seed) for seed in range(4))
    x, ids = drawn(6, 256), draw_ids(np.random.default_rng(5), 6, 4, 2)
    weights = np.stack([blocks.dequantize() for blocks in each])
    mixture = Experts(Form("bfloat16", each[0].scheme, True), weights, blocks=each)
    got = mixture.run(x, ids, device)
    np.testing.assert_array_equal(got, mixture.each_alone(x, ids, device))
    close(got[1:2], x[:1], each[ids[0, 1]])
    np.testing.assert_array_equal(mixture.run(x[2:3], ids[2:3], device), got[4:6])


def test_what_is_no_matrix_of_the_format_is_refused(device: Any) -> None:
    tensor = blocks_of("Q4_0", 9, 64)
    matrix = matrix_of(tensor, device)
    with pytest.raises(ValueError, match="down is stored as Q8_0, and not in Q4_0"):
        matrix.fill_quantized(0, blocks_of("Q8_0", 9, 64), "down", put(device))
    with pytest.raises(ValueError, match="nothing rounds to Q4_0"):
        matrix.fill(0, torch.zeros(9, 64), "down")
    with pytest.raises(ValueError, match="no GPU kernel rounds what it multiplies blocks by"):
        make_matrix(Shape(9, 64, 1), "bfloat16", tensor.scheme, Workspace(device), torch.bfloat16)


WORDS: NDArray[np.uint16] = np.arange(1 << 16, dtype=np.uint16)


def floats(register: NDArray[np.uint32]) -> F32:
    return register.view(ml_dtypes.bfloat16).astype(np.float32)


@pytest.mark.parametrize(
    ("low", "high", "zero"), [(4, 0, 8), (4, 0, 0), (4, 1, 16), (4, 2, 32), (2, 0, 0), (2, 1, 4)]
)
def test_assembly_of_whole_numbers(low: int, high: int, zero: int) -> None:
    bits = np.random.default_rng(2).integers(0, 256, len(WORDS), np.uint16)
    inputs = [WORDS.view(np.uint32)] + ([bits.view(np.uint32)] if high else [])
    constraints = ",".join(["=r"] * 4 + ["r"] * len(inputs))
    outs = Assembly(_assembly("whole", zero, low, high), constraints, 2).run(*inputs)
    for plane, out in enumerate(outs):
        code = WORDS.astype(np.int32) >> low * plane & (1 << low) - 1
        code |= (bits.astype(np.int32) >> high * plane & (1 << high) - 1) << low
        np.testing.assert_array_equal(floats(out), code - zero)


@pytest.mark.parametrize(("values", "table"), [("iq4", IQ4_VALUES), ("e2m1", E2M1_VALUES)])
def test_assembly_of_tables(values: str, table: tuple[int, ...]) -> None:
    assembly = Assembly(_assembly(values, 0, 4, 0), "=r,=r,=r,=r,r", 2)
    if values == "iq4":  # selectors are numbers of one register here
        rng = np.random.default_rng(3)
        words = rng.integers(0, 1 << 16, (300, 2), np.uint16)
        outs = [assembly.run(pair.view(np.uint32)) for pair in words]
        found = [np.concatenate([floats(out[plane]) for out in outs]) for plane in range(4)]
        words = words.reshape(-1)
    else:
        words, found = WORDS, [floats(out) for out in assembly.run(WORDS.view(np.uint32))]
    for plane, got in enumerate(found):
        want = np.array(table, np.float32)[words >> np.uint16(4 * plane) & np.uint16(15)]
        np.testing.assert_array_equal(got.view(np.uint32), want.view(np.uint32))
