"""Parameters of products: none is seen in a result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.native_arrays import as_bytes
from support.needs import Need, lacking

from penstock.backends.cpu import native, tune
from penstock.backends.cpu.tune import Product, ProductTuner
from penstock.interface.tuning import Circumstances

MOST_ROWS = 520  # more than a block of rows
N, K = 130, 2100  # several slices of the depth; a last panel with columns to spare
FORMS = ["float32", "bfloat16", "int8", "int4", "int8 by 64", "int4 by 32"]
HERE = Circumstances("a CPU", 2)


@dataclass
class Bound:
    """An executor of one product."""

    native: Any
    matrix: int
    out: int

    def run(self, rows: int) -> bytes:
        """Bits of the product of made-up rows."""
        self.native.fill_inputs([self.matrix], rows)
        out = self.native.view(self.out)
        out[:] = 0xA5
        self.native.time_product(self.matrix, rows)
        assert (out[rows:] == 0xA5).all()
        return bytes(out[:rows].tobytes())


def bound(module: Any, form: str, gated: bool = False, x: str = "bfloat16") -> Bound:
    rng = np.random.default_rng(7)
    x_row = K * (2 if x == "bfloat16" else 4) // 64 * 64 + 64
    executor = module.Executor(
        threads=2,
        cpus=[],
        crowded=False,
        num_blocks=1,
        max_tokens=MOST_ROWS,
        max_logits=1,
        max_sequences=1,
        max_positions=1,
        vocabulary=1,
        arena_bytes=MOST_ROWS * (x_row + 576),
        kv_elem="float32",
        kv_layers=[],
    )
    source = executor.add_buffer(0, x, K, x_row, "T")
    out = executor.add_buffer(MOST_ROWS * x_row, "float32", N, 576, "T")
    parts = [(i * N, rng.standard_normal((N, K)).astype(np.float32)) for i in range(1 + gated)]
    kind, _, group = form.partition(" by ")
    if group:
        matrix = executor.add_int_matrix(
            bits=int(kind[3:]),
            group=int(group),
            n=N,
            k=K,
            gated=gated,
            zero_points=False,
            weight_only=False,
        )
        most = 127 if kind == "int8" else 7
        for first, rows in parts:
            codes = np.clip(rows * most / 3, -most, most).astype(np.int8)
            scales = rng.random((N, -(-K // int(group))), np.float32)
            executor.pack_int_rows(matrix, first, N, codes, scales, None)
    elif kind.startswith("int"):
        matrix = executor.add_grid_matrix(
            bits=int(kind[3:]), n=N, k=K, gated=gated, weight_only=False
        )
        for first, rows in parts:
            assert executor.pack_grid_rows(matrix, first, N, "float32", as_bytes(rows))
    else:
        matrix = executor.add_matrix(kind, N, K, gated)
        dtype = np.float32 if kind == "float32" else ml_dtypes.bfloat16
        for first, rows in parts:
            executor.pack_rows(matrix, first, N, as_bytes(rows.astype(dtype)))
    executor.append_linear(matrix, None, source, out, "silu" if gated else "none")
    return Bound(executor, matrix, out)


@pytest.mark.thinned(5)
@pytest.mark.parametrize("gated", [False, True], ids=["plain", "gated"])
@pytest.mark.parametrize("form", FORMS)
def test_no_result_depends_on_a_parameter(module: Any, form: str, gated: bool) -> None:
    product = bound(module, form, gated, x="float32" if form == "float32" else "bfloat16")
    some_rows = (1, 2, 3, 5, 13, 17, 33, 64, 200, MOST_ROWS)
    expected = {rows: product.run(rows) for rows in some_rows}
    ranges = product.native.parameters(product.matrix)
    values = {
        name: st.sampled_from([least, most]) | st.integers(least, most)
        for name, (_, least, most) in ranges.items()
    }

    @settings(max_examples=8, deadline=None)
    @given(st.fixed_dictionaries(values), st.lists(st.sampled_from(some_rows), min_size=3))
    def any_legal_values(chosen: dict[str, int], rows: list[int]) -> None:
        for name, value in chosen.items():
            product.native.set_parameter(product.matrix, name, value)
        assert {
            n: v for n, (v, _, _) in product.native.parameters(product.matrix).items()
        } == chosen
        for count in rows:
            assert product.run(count) == expected[count], (chosen, count)

    any_legal_values()
    product.native.close()


def test_what_is_not_legal_is_refused(module: Any) -> None:
    product = bound(module, "int4")
    executor, matrix = product.native, product.matrix
    before = executor.parameters(matrix)
    name, (_, least, most) = next(iter(before.items()))
    for value in (least - 1, most + 1, -(1 << 62), 1 << 62):
        with pytest.raises(ValueError, match=rf"{name} is {value}, not in \[{least}, {most}\]"):
            executor.set_parameter(matrix, name, value)
    with pytest.raises(ValueError, match="a product has no parameter colour"):
        executor.set_parameter(matrix, "colour", 1)
    assert executor.parameters(matrix) == before
    for rows in (0, -1, MOST_ROWS + 1):
        for use in (
            lambda n=rows: executor.time_product(matrix, n),
            lambda n=rows: executor.fill_inputs([matrix], n),
        ):
            with pytest.raises(ValueError, match=f"a product has 1 to {MOST_ROWS} rows, not"):
                use()
    with pytest.raises(ValueError, match="no such matrix"):
        executor.parameters(5)
    loose = executor.add_matrix("float32", 4, 4, False)
    with pytest.raises(ValueError, match="no product has this matrix"):
        executor.time_product(loose, 1)
    assert executor.product_rows(matrix) == MOST_ROWS
    executor.close()


def test_defaults_lie_in_their_ranges(module: Any) -> None:
    for form in FORMS:
        product = bound(module, form)
        for value, least, most in product.native.parameters(product.matrix).values():
            assert least <= value <= most
        product.native.close()


@pytest.mark.parametrize("form", ["float32", "bfloat16", "int8 by 64"])
def test_products_are_cut_for_the_cache_that_is_there(module: Any, form: str) -> None:
    """The default is that cache, and any size that one can have may be tried."""
    product = bound(module, form)
    value, least, most = product.native.parameters(product.matrix)["cache_bytes"]
    assert (value, least, most) == (module.second_level_cache(), 128 << 10, 64 << 20)
    product.native.close()


def test_measuring_the_kernels_themselves(module: Any) -> None:
    """Whatever it chooses, it ends, says so, and changes no result."""
    product = bound(module, "int4")
    rows = (1, 4, 40, MOST_ROWS)
    expected = {n: product.run(n) for n in rows}
    one = Product("int4 130x2100", (product.matrix,), 1 << 20, False)
    tuning = ProductTuner(product.native, [one], HERE).measure()
    assert [tuned.product for tuned in tuning.products] == [one.name]
    assert {n: product.run(n) for n in rows} == expected
    present = {n: v for n, (v, _, _) in product.native.parameters(product.matrix).items()}
    for choice in tuning.products[0].choices:
        assert choice.saved >= 0.03
        ranges = product.native.parameters(product.matrix)[choice.parameter]
        assert ranges[1] <= choice.value <= ranges[2]
    last = {choice.parameter: choice.value for choice in tuning.products[0].choices}
    assert last.items() <= present.items()
    fresh = bound(module, "int4")
    ProductTuner(fresh.native, [one], HERE).apply(tuning)
    assert fresh.native.parameters(fresh.matrix) == product.native.parameters(product.matrix)
    product.native.close()
    fresh.native.close()


def test_native_variants_name_what_trials_try() -> None:
    """Every trial is of a parameter that some kind of matrix has on the best variant, and every
    parameter is tried but the size of the cache, which the system says."""
    if "amx" not in native.runnable():
        lacking(Need.INSTRUCTIONS, "AMX, which have more parameters than others")
    module = native.load("amx")
    names = set()
    for form in FORMS:
        product = bound(module, form)
        names |= set(product.native.parameters(product.matrix))
        product.native.close()
    assert {trial.parameter for trial in tune.TRIALS} == names - {"cache_bytes"}
