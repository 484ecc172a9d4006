"""How the tuner chooses, with a machine whose times are known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from penstock.backends.cpu import tune
from penstock.backends.cpu.tune import Product, ProductTuner, Trial
from penstock.interface.tuning import Choice, Circumstances, TunedProduct, Tuning

HERE = Circumstances("a CPU", 2)


@dataclass
class Machine:
    """Stands in for a native executor. ``seconds`` of (values, rows, turn of the call)."""

    seconds: Callable[[dict[str, int], int, int], float]
    values: dict[str, int]
    most_rows: int = 4096
    calls: int = 0
    clock: float = 0.0
    share: float = 1.0
    """How many of the clock's seconds go by in a second of processor time."""
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
    """Each value meets every layer, even where there are as many values as layers."""
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
