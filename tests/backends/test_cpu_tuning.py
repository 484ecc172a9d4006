"""Parameters of products: none is seen in a result, and clearly faster ones are chosen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.native_arrays import as_bytes
from support.needs import Need, lacking

from penstock.backends.cpu import native, tune
from penstock.backends.cpu.tune import Product, ProductTuner, Trial
from penstock.interface.tuning import Choice, Circumstances, TunedProduct, Tuning

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


# --- how it chooses, with a machine whose times are known --------------------------------------


@dataclass
class Machine:
    """Stands in for a native executor. ``seconds`` of (values, rows, turn of the call)."""

    seconds: Callable[[dict[str, int], int, int], float]
    values: dict[str, int]
    most_rows: int = 4096
    calls: int = 0
    clock: float = 0.0
    share: float = 1.0
    """Of the clock's seconds, how many go by in a second of processor time."""
    set_on: dict[int, dict[str, int]] = field(default_factory=dict)

    def _of(self, matrix: int) -> dict[str, int]:
        return self.set_on.setdefault(matrix, dict(self.values))

    def parameters(self, matrix: int) -> dict[str, tuple[int, int, int]]:
        return {name: (value, 0, 100) for name, value in self._of(matrix).items()}

    def set_parameter(self, matrix: int, name: str, value: int) -> None:
        assert name in self.values
        self._of(matrix)[name] = value

    def product_rows(self, matrix: int) -> int:
        return self.most_rows

    def fill_inputs(self, matrices: list[int], rows: int) -> None:
        assert 1 <= rows <= self.most_rows

    def time_product(self, matrix: int, rows: int) -> float:
        seconds = self.seconds(self._of(matrix), rows, self.calls)
        self.calls += 1
        self.clock += seconds
        return seconds


LAYERS = (0, 1, 2, 3, 4)
SOME = Product("int4 64x64", LAYERS, 1 << 20, False)


@pytest.fixture
def measure(monkeypatch: pytest.MonkeyPatch) -> Any:
    def run(machine: Machine, trials: list[Trial], product: Product = SOME) -> tuple[Choice, ...]:
        clock = SimpleNamespace(
            monotonic=lambda: machine.share * machine.clock, thread_time=lambda: machine.clock
        )
        monkeypatch.setattr(tune, "time", clock)
        tuner = ProductTuner(machine, [product], HERE, trials)  # type: ignore[arg-type]
        (tuned,) = tuner.measure().products
        assert tuned.product == product.name
        for matrix in product.matrices:
            assert machine._of(matrix) == machine._of(product.matrices[0])
        return tuned.choices

    return run


def test_the_fastest_value_is_chosen_for_all_layers(measure: Any) -> None:
    cost = {2: 1.0, 4: 0.8, 6: 0.7, 8: 1.5}
    machine = Machine(lambda v, rows, turn: 1e-4 * cost[v["a"]], {"a": 2, "b": 1})
    (choice,) = measure(machine, [Trial("a", 1, (2, 4, 6, 8))])
    assert choice == Choice("a", 6, 1, 0.3)
    assert machine.set_on == {matrix: {"a": 6, "b": 1} for matrix in LAYERS}


def test_two_percent_are_not_clearly_faster(measure: Any) -> None:
    machine = Machine(lambda v, rows, turn: 1e-4 * (0.98 if v["a"] else 1.0), {"a": 0})
    assert measure(machine, [Trial("a", 1, (1,))]) == ()
    assert machine.set_on == {matrix: {"a": 0} for matrix in LAYERS}


@pytest.mark.parametrize("seed", range(20))
def test_noise_alone_changes_nothing(measure: Any, seed: int) -> None:
    """Half of all calls take up to three times as long as they should."""
    rng = np.random.default_rng(seed)
    machine = Machine(
        lambda v, rows, turn: 1e-4 * (1 + 2 * max(0.0, rng.random() - 0.5)),
        {"a": 0},
    )
    assert measure(machine, [Trial("a", 1, (1, 2, 3))]) == ()


@pytest.mark.parametrize("seed", range(5))
def test_noise_hides_nothing_large(measure: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    machine = Machine(
        lambda v, rows, turn: (
            1e-4 * (0.8 if v["a"] == 2 else 1.0) * (1 + max(0.0, rng.random() - 0.5))
        ),
        {"a": 0},
    )
    (choice,) = measure(machine, [Trial("a", 1, (1, 2, 3))])
    assert choice.value == 2
    assert 0.15 < choice.saved < 0.25


def test_what_was_fast_once_is_not_chosen(measure: Any) -> None:
    """The second comparison is of new calls alone."""
    machine = Machine(lambda v, rows, turn: 1e-4 * (0.5 if v["a"] and turn < 20 else 1.0), {"a": 0})
    assert measure(machine, [Trial("a", 1, (1,))]) == ()


def test_layers_that_differ_mislead_nobody(measure: Any) -> None:
    """With as many values as layers, each value still meets every layer."""
    slow_layer = [1.0, 0.7]
    machine = Machine(lambda v, rows, turn: 1e-4, {"a": 0})
    machine.time_product = (  # type: ignore[method-assign]
        lambda matrix, rows: 1e-4 * slow_layer[matrix]
    )
    two = Product("x", (0, 1), 1 << 20, False)
    assert measure(machine, [Trial("a", 1, (1,))], two) == ()


def test_a_hand_over_is_found_row_by_row(measure: Any) -> None:
    """Tiles cost the same at any number of rows, registers by the row: as fast at 7."""

    def seconds(values: dict[str, int], rows: int, turn: int) -> float:
        return 7e-4 if rows >= values["tile_rows_from"] else 1e-4 * rows

    trials = [t for t in tune.TRIALS if t.parameter == "tile_rows_from"]
    choices = measure(Machine(seconds, {"tile_rows_from": 3}), trials)
    assert [choice.value for choice in choices] == [5, 7]


def test_slow_products_are_left_alone(measure: Any) -> None:
    """A second a row: nobody waits for that."""
    machine = Machine(lambda v, rows, turn: float(rows), {"a": 0})
    assert measure(machine, [Trial("a", 512, (1,)), Trial("a", 64, (1,))]) == ()
    assert machine.clock <= 2


def test_time_runs_out(measure: Any) -> None:
    machine = Machine(lambda v, rows, turn: 0.004 * (0.5 if v["a"] else 1), {"a": 0, "b": 0})
    trials = [Trial("a", 1, (1,)), *[Trial("b", 1, (1, 2, 3, 4))] * 50]
    assert [choice.parameter for choice in measure(machine, trials)] == ["a"]
    assert machine.clock < 1.1


def test_a_busy_machine_is_waited_for_but_not_for_long(measure: Any) -> None:
    trials = [Trial("b", 1, (1, 2, 3, 4))] * 50

    def clock_after(share: float) -> float:
        machine = Machine(lambda v, rows, turn: 0.004, {"b": 0}, share=share)
        assert measure(machine, trials) == ()
        return machine.clock * share

    assert 0.8 < clock_after(1.0) < 1.1
    assert 1.6 < clock_after(2.0) < 2.2
    assert 2.0 < clock_after(20.0) < 20 * 0.004 * 60


def test_more_rows_than_a_step_has(measure: Any) -> None:
    machine = Machine(lambda v, rows, turn: 1e-4 * (0.5 if v["a"] else 1), {"a": 0}, most_rows=300)
    (choice,) = measure(machine, [Trial("a", 512, (1,))])
    assert choice.rows == 300
    machine = Machine(lambda v, rows, turn: 1e-4 * (0.5 if v["a"] else 1), {"a": 0}, most_rows=200)
    assert measure(machine, [Trial("a", 512, (1,))]) == ()
    head = Product("head", (0,), 1 << 20, True)
    machine = Machine(lambda v, rows, turn: 1e-4 * (0.5 if v["a"] else 1), {"a": 0})
    assert measure(machine, [Trial("a", 512, (1,))], head) == ()


def test_parameters_that_a_variant_lacks(measure: Any) -> None:
    assert measure(Machine(lambda v, rows, turn: 1e-4, {}), list(tune.TRIALS)) == ()


def test_tuning_of_something_else_is_refused_whole() -> None:
    machine = Machine(lambda v, rows, turn: 1e-4, {"a": 2, "b": 1})
    tuner = ProductTuner(machine, [SOME], HERE)  # type: ignore[arg-type]

    def tuning(name: str, *choices: Choice) -> Tuning:
        return Tuning(HERE, 1.0, (TunedProduct(name, choices),))

    good = Choice("a", 9, 1, 0.1)
    for wrong, why in (
        (tuning("int4 64x65", good), "other products"),
        (Tuning(HERE, 1.0, ()), "other products"),
        (tuning(SOME.name, good, Choice("c", 9, 1, 0.1)), "c 9 for int4 64x64, which this version"),
        (tuning(SOME.name, good, Choice("b", 101, 1, 0.1)), "b 101 for"),
        (tuning(SOME.name, good, Choice("b", -1, 1, 0.1)), "b -1 for"),
    ):
        with pytest.raises(ValueError, match=why):
            tuner.apply(wrong)
        assert machine.parameters(0) == {"a": (2, 0, 100), "b": (1, 0, 100)}
    tuner.apply(tuning(SOME.name, good, Choice("a", 11, 4, 0.1)))
    assert all(machine.parameters(matrix)["a"][0] == 11 for matrix in LAYERS)


def test_what_a_tuning_says() -> None:
    nothing = Tuning(HERE, 0.5, (TunedProduct("p", ()),))
    assert nothing.summary() == (
        "1 product for 2 threads of a CPU, measured in 0.5 s: "
        "nothing is clearly faster than the defaults"
    )
    some = Tuning(
        HERE,
        0.5,
        (
            TunedProduct("p", (Choice("a", 1, 1, 0.05), Choice("b", 2, 8, 0.2))),
            TunedProduct("q", ()),
        ),
    )
    assert some.summary().endswith(": 2 choices saving 5 to 20 % of a product's time")
    assert some.details() == ["p: a 1 (5 % at 1 row), b 2 (20 % at 8 rows)"]


def test_native_variants_name_what_trials_try() -> None:
    """Every trial is of a parameter that some kind of matrix has on the best variant."""
    if "amx" not in native.runnable():
        lacking(Need.INSTRUCTIONS, "AMX, which have more parameters than others")
    module = native.load("amx")
    names = set()
    for form in FORMS:
        product = bound(module, form)
        names |= set(product.native.parameters(product.matrix))
        product.native.close()
    assert {trial.parameter for trial in tune.TRIALS} == names
