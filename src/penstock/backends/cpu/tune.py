"""Choose how products are carried out by timing them on the executor's own weights.

Which parameters there are, what they mean and what each gained: ``csrc/kernels/gemm_tuning.h``.
No result depends on any of them, so a wrong choice costs time and nothing else; still a value is
changed only where another is clearly faster, twice. Times are of the processor, so other programs
on the machine show little.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from penstock.backends.cpu.interface import NativeExecutor
from penstock.backends.cpu.native_ops import MatrixId
from penstock.hardware import Hardware
from penstock.interface.tuning import Choice, Circumstances, TunedProduct, Tuning

LEAST_BYTES: Final = 1 << 20
"""Size in bytes from which a matrix is tuned. The product of a smaller one takes a few
microseconds, too few to tell parameter values apart."""

CLEARLY: Final = 0.97
"""A parameter value replaces another if it takes at most this share of the other's time."""

_SECONDS_A_BYTE: Final = 0.5e-9
_LEAST_S, _MOST_S = 1.0, 4.0
"""Bounds, in seconds, of the processor time spent on measuring. Between them it is proportional to
the bytes of weights, and a small part of the time for packing."""

_WALL: Final = 3.0
"""Limit of the elapsed time, as a multiple of the processor time: other programs may keep the cores
busy."""

_SERIES_S: Final = 0.02
"""Seconds for one comparison of parameter values, within these limits on the number of rounds:"""
_LEAST_ROUNDS, _MOST_ROUNDS = 5, 12

_FEW_LOGITS: Final = 64
"""Maximum number of rows for which the output matrix is tuned: most steps want one row of logits
per sequence."""

_STRIDE: Final = 8
"""Numbers of rows grow by this factor at most from one call to the next, so that no call takes
seconds by surprise."""


@dataclass(frozen=True)
class Product:
    """The matrices of one shape and format."""

    name: str
    matrices: tuple[MatrixId, ...]
    """The matrices of all layers. They are timed in turn, so that they come from memory and not
    from the cache."""
    matrix_bytes: int
    logits: bool
    """Whether it is computed for selected rows only, such as those with logits, not for all
    tokens."""

    @property
    def bytes(self) -> int:
        return self.matrix_bytes * len(self.matrices)


@dataclass(frozen=True)
class Trial:
    """Values to try for a parameter, and the number of rows at which they make a difference."""

    parameter: str
    rows: int
    values: tuple[int, ...]


_KIB: Final = 1 << 10
TRIALS: Final = (
    Trial("streamed_rows", 1, (0, 2)),
    Trial("stream_ahead", 1, (_KIB // 8, 2 * _KIB, 4 * _KIB, 8 * _KIB, 16 * _KIB)),
    Trial("shared_into_l2", 8, (0, 1)),
    # At so many rows, the next value up takes registers and this one tiles.
    Trial("tile_rows_from", 2, (2,)),
    Trial("tile_rows_from", 4, (5,)),
    Trial("tile_rows_from", 6, (7,)),
    Trial("tile_rows_from", 8, (9,)),
    Trial("tile_rows_from", 10, (11,)),
    Trial("carry_bytes", 512, (2 << 20, 4 << 20)),
)
"""What decode needs comes first: there is not always time for all."""


class _Budget:
    """The time left for measuring ``num_bytes`` of weights. The caller is one of the threads."""

    def __init__(self, num_bytes: int) -> None:
        seconds = min(max(_SECONDS_A_BYTE * num_bytes, _LEAST_S), _MOST_S)
        self._processor = time.thread_time() + seconds
        self._clock = time.monotonic() + _WALL * seconds

    def left(self) -> float:
        """Seconds left; negative when the budget is used up."""
        return min(self._processor - time.thread_time(), self._clock - time.monotonic())


class ProductTuner:
    """Tunes the matrix products of one native executor (``interface.tuning.Tunable``)."""

    def __init__(
        self,
        native: NativeExecutor,
        products: Sequence[Product],
        circumstances: Circumstances,
        trials: Sequence[Trial] = TRIALS,
    ) -> None:
        self._native = native
        self._products = tuple(sorted(products, key=lambda p: -p.bytes))
        self._trials = trials
        self.circumstances = circumstances

    def apply(self, tuning: Tuning) -> None:
        mine = {product.name: product for product in self._products}
        if sorted(mine) != sorted(tuned.product for tuned in tuning.products):
            raise ValueError("it is of other products")
        for tuned in tuning.products:
            ranges = self._parameters(mine[tuned.product])
            for choice in tuned.choices:
                _, least, most = ranges.get(choice.parameter, (0, 1, 0))
                if not least <= choice.value <= most:
                    raise ValueError(
                        f"it has {choice.parameter} {choice.value} for {tuned.product}, "
                        "which this version does not know"
                    )
        for tuned in tuning.products:
            for choice in tuned.choices:
                self._set(mine[tuned.product], choice.parameter, choice.value)

    def measure(self) -> Tuning:
        started = time.monotonic()
        budget = _Budget(sum(product.bytes for product in self._products))
        choices: dict[str, list[Choice]] = {product.name: [] for product in self._products}
        known: dict[tuple[str, int], float] = {}
        for trial in self._trials:
            for product in self._products:
                choice = self._try(product, trial, budget, known)
                if choice is not None:
                    choices[product.name].append(choice)
                    self._set(product, choice.parameter, choice.value)
        return Tuning(
            self.circumstances,
            round(time.monotonic() - started, 3),
            tuple(TunedProduct(name, tuple(chosen)) for name, chosen in choices.items()),
        )

    def _try(
        self, product: Product, trial: Trial, budget: _Budget, known: dict[tuple[str, int], float]
    ) -> Choice | None:
        """The value of ``trial`` that is clearly faster than the present one, if there is one and
        time is left to find it. ``known``: seconds a call, by name and rows."""
        parameters = self._parameters(product)
        if trial.parameter not in parameters or (product.logits and trial.rows > _FEW_LOGITS):
            return None
        rows = min(trial.rows, self._native.product_rows(product.matrices[0]))
        if rows < trial.rows // 2:
            return None
        present = parameters[trial.parameter][0]
        values = [present, *(value for value in trial.values if value != present)]
        call = self._seconds_a_call(product, rows, budget, known)
        if call is None or len(values) == 1:
            return None
        if call * _LEAST_ROUNDS * (len(values) + 2) > budget.left():
            return None
        self._native.fill_inputs(list(product.matrices), rows)
        times = self._times(product, rows, trial.parameter, values, call)
        best = min(values, key=lambda value: min(times[value]))
        saved = 0.0
        if _clearly_less(times[best], times[present]):
            again = self._times(product, rows, trial.parameter, [present, best], call)
            if _clearly_less(again[best], again[present]):
                saved = 1 - min(again[best]) / min(again[present])
        self._set(product, trial.parameter, present)
        return Choice(trial.parameter, best, rows, round(saved, 3)) if saved else None

    def _seconds_a_call(
        self, product: Product, rows: int, budget: _Budget, known: dict[tuple[str, int], float]
    ) -> float | None:
        """None where one call may take a quarter of the time that is left."""
        tried, seconds = 0, 0.0
        while tried < rows:
            tried = min(rows, _STRIDE * tried or 1)
            if seconds * _STRIDE > budget.left() / 4:
                return None
            if (product.name, tried) not in known:
                self._native.fill_inputs([product.matrices[0]], tried)
                known[product.name, tried] = self._native.time_product(product.matrices[0], tried)
            seconds = known[product.name, tried]
        return seconds

    def _times(
        self, product: Product, rows: int, parameter: str, values: Sequence[int], call: float
    ) -> dict[int, list[float]]:
        """Seconds of calls with each of ``values``, which take turns, as do the matrices."""
        rounds = int(_SERIES_S / (call * len(values)))
        rounds = min(max(rounds, _LEAST_ROUNDS), _MOST_ROUNDS)
        times: dict[int, list[float]] = {value: [] for value in values}
        turn = 0
        for i in range(rounds):
            first = i % len(values)
            for value in (*values[first:], *values[:first]):
                matrix = product.matrices[turn % len(product.matrices)]
                self._native.set_parameter(matrix, parameter, value)
                times[value].append(self._native.time_product(matrix, rows))
                turn += 1
        return times

    def _parameters(self, product: Product) -> Mapping[str, tuple[int, int, int]]:
        return self._native.parameters(product.matrices[0])

    def _set(self, product: Product, parameter: str, value: int) -> None:
        for matrix in product.matrices:
            self._native.set_parameter(matrix, parameter, value)


def circumstances(hardware: Hardware, threads: int) -> Circumstances:
    """The processor model with its L2 size, and the number of threads.

    A virtual machine's name for its processor says little; the size of its cache says more.
    """
    cache = hardware.cache_size(2)
    l2 = "" if cache is None else f", L2 {cache >> 10} KiB"
    return Circumstances(hardware.cpu_model + l2, threads)


def _clearly_less(times: Sequence[float], than: Sequence[float]) -> bool:
    """Whether ``times`` are clearly less than ``than``.

    Compares the minimum, which noise can only increase, and the value a third of the way up, in
    case the minimum is a fluke.
    """
    new, old = sorted(times), sorted(than)
    third = len(new) // 3
    return new[0] < CLEARLY * old[0] and new[third] < CLEARLY * old[third]
