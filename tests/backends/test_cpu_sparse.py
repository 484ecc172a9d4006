"""Panels that hold two of each four codes: their products have the bits of dense ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.native_executor import make
from support.native_products import QuantizedProduct
from support.needs import Need, needs_native

from penstock.backends.cpu import native
from penstock.quant import GroupScheme, GroupTensor

pytestmark = needs_native
K = {32: 192, 64: 192, 128: 256, None: 100}
"""Columns for each size of groups; a row is padded."""


@pytest.fixture
def sparse() -> Any:
    """A variant with such panels."""
    for isa in native.runnable():
        module = native.load(isa)
        if module.sparse_panels:
            return module
    pytest.skip(Need.INSTRUCTIONS.reason("AVX-512 VBMI2"))


def pruned(tensor: GroupTensor, rng: np.random.Generator) -> GroupTensor:
    """Two of each four codes, or more, stand for 0."""
    n, k = tensor.codes.shape
    kept = rng.random((n, k // 4, 4)).argsort(axis=2) < rng.integers(0, 3, (n, k // 4, 1))
    zeros = np.zeros_like(tensor.codes) if tensor.zeros is None else tensor._spread(tensor.zeros)
    codes = np.where(kept.reshape(n, k), tensor.codes, zeros).astype(np.int8)
    return replace(tensor, codes=codes)


def draw(
    bits: Any, group: int | None, zero_points: bool, gate: Any, sizes: tuple[int, ...], seed: int
) -> QuantizedProduct:
    rng = np.random.default_rng(seed)
    scheme = GroupScheme(bits, group, zero_points)
    product = QuantizedProduct.random(rng, sizes, K[group], scheme, gate, bias=True)
    parts = (pruned(part, rng) for part in product.parts if isinstance(part, GroupTensor))
    return replace(product, parts=tuple(parts))


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("group", K)
@pytest.mark.parametrize("zero_points", [False, True])
def test_products_have_the_bits_of_dense_panels(
    bits: Any, group: int | None, zero_points: bool, sparse: Any
) -> None:
    product = draw(bits, group, zero_points, "none", (21, 28), 3)
    x = np.random.default_rng(4).standard_normal((40, K[group])).astype(np.float32)
    want = product.run(sparse, x)
    for rows in (1, 2, 3, 4, 5, 6, 7, 12, 13, 40):
        for threads in (1, 2):
            got = product.run(sparse, x[:rows], threads, sparse=True)
            np.testing.assert_array_equal(got.view(np.uint32), want[:rows].view(np.uint32))
    for isa in set(native.runnable()) - {"baseline"}:  # which fuses no multiplications
        np.testing.assert_array_equal(product.run(native.load(isa), x), want)


@given(
    bits=st.sampled_from([4, 8]),
    group=st.sampled_from(list(K)),
    zero_points=st.booleans(),
    gate=st.sampled_from(["none", "silu"]),
    n=st.integers(1, 50),
    rows=st.integers(1, 20),
    bf16=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_product_has(
    bits: Any, group: Any, zero_points: bool, gate: Any, n: int, rows: int, bf16: bool, seed: int
) -> None:
    module = next((m for m in map(native.load, native.runnable()) if m.sparse_panels), None)
    if module is None:
        pytest.skip(Need.INSTRUCTIONS.reason("AVX-512 VBMI2"))
    sizes = (n,) if gate == "none" else (n, n)
    product = draw(bits, group, zero_points, gate, sizes, seed)
    x = np.random.default_rng(seed).standard_normal((rows, K[group])).astype(np.float32)
    out = "bfloat16" if bf16 else "float32"
    got = product.run(module, x, out_elem=out, sparse=True)
    assert np.array_equal(got, product.run(module, x, out_elem=out))


def test_three_of_four_are_refused(sparse: Any) -> None:
    codes = np.zeros((16, 64), np.int8)
    codes[:, ::2] = 3
    scales = np.ones((16, 2), np.float32)
    executor = make(sparse)
    shape: dict[str, Any] = {"bits": 8, "group": 32, "n": 16, "k": 64, "gated": False}
    shape |= {"zero_points": False, "weight_only": False, "sparse": True}
    matrix = executor.add_int_matrix(**shape)
    assert executor.pack_int_rows(matrix, 0, 16, codes, scales, None)
    codes[15, 61] = -1
    assert not executor.pack_int_rows(matrix, 0, 16, codes, scales, None)
    with pytest.raises(ValueError, match="by rows that are quantized, too"):
        executor.add_int_matrix(**(shape | {"weight_only": True}))


def test_panels_take_five_bits_a_weight_and_three(sparse: Any) -> None:
    for bits, each in ((8, 5), (4, 3)):
        executor = make(sparse)
        scheme = GroupScheme(bits, 64, sparse=True)  # type: ignore[arg-type]
        executor.add_int_matrix(
            bits=bits, group=64, n=160, k=256, gated=False, zero_points=False, weight_only=False,
            sparse=True,
        )  # fmt: skip
        (held,) = executor.region_bytes
        assert held == scheme.nbytes(160, 256) == 160 * (256 * each // 8 + 4 * 4)


def test_other_variants_refuse_them() -> None:
    for isa in native.runnable():
        module = native.load(isa)
        if not module.sparse_panels:
            with pytest.raises(ValueError, match="AVX-512 VBMI2"):
                make(module).add_int_matrix(
                    bits=8, group=0, n=16, k=64, gated=False, zero_points=False,
                    weight_only=False, sparse=True,
                )  # fmt: skip
