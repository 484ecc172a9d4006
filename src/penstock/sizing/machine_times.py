"""The time of steps on a machine that was measured: constants of it, fitted to ops that it ran.

The roofline knows no caches, no rows and no instructions, so it misses a real engine by half. What
an op takes beyond its bytes and its arithmetic is the same for all shapes, and is measured once:

- a product: ``weights * pace(form, rows) + rows * columns * c + o``. The pace is seconds for each
  weight, measured at several numbers of rows, with straight lines between them: at few rows it is
  that of memory, at many that of arithmetic, in this form of weights. ``c`` is what rounding inputs
  and storing outputs take, ``o`` starting an op and its barrier of threads.
- attention: a time for each sequence (and column), for each byte that is cached, for each
  multiply-add, and for each row;
- writing keys and values: a time for each column of each row, with and without norms of heads;
- the rest: a time for each column of each row;
- a step outside its ops: a fixed time, and one for each sequence.

They are fitted by least squares of relative errors, and none is negative.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from penstock.errors import ConfigError
from penstock.plan.costs import Demand, PlanCosts, StepSize
from penstock.sizing.least_squares import nonnegative


@dataclass(frozen=True)
class OpObservation:
    """What ops of one kind took in a step: the median of those of its layers, in seconds."""

    demand: Demand
    size: StepSize
    seconds: float


@dataclass(frozen=True)
class StepObservation:
    """What a step took outside its ops, in seconds."""

    size: StepSize
    seconds: float


class Pace(msgspec.Struct, frozen=True):
    """How fast products of weights in one form go."""

    form: str
    rows: tuple[int, ...]
    """Ascending numbers of rows that were measured."""
    seconds: tuple[float, ...]
    """Seconds for each weight at so many rows."""

    def at(self, rows: int) -> float:
        """Seconds for each weight; beyond the most rows that were measured, in proportion."""
        if rows > self.rows[-1]:
            return self.seconds[-1] * rows / self.rows[-1]
        return float(np.interp(rows, self.rows, self.seconds))


class MachineTimes(msgspec.Struct, frozen=True, kw_only=True):
    """The constants of a machine with one number of threads; all in seconds."""

    op: float
    """What each op takes: its start and its barrier."""
    product_column: float
    """What each column of each row takes that a product reads or writes."""
    paces: tuple[Pace, ...]
    attention: tuple[float, float, float, float]
    """What each sequence and column takes, each byte cached, each multiply-add, each row and
    column."""
    cache_column: tuple[float, float]
    """What each column of each row takes, without norms of heads and with them."""
    row_column: float
    step: float
    sequence: float
    """What each sequence in a step takes outside ops."""

    @classmethod
    def fit(cls, ops: Sequence[OpObservation], steps: Sequence[StepObservation]) -> MachineTimes:
        """Fit the constants. There must be observations of every kind but norms of heads."""
        rows = [each for each in ops if each.demand.work == "rows" and _rows(each)]
        op, row_column = _fit(rows, lambda each: (1.0, _rows(each) * each.demand.columns))
        plain, normed = (
            _column([o for o in ops if o.demand.work == "cache" and o.demand.normed is kind], op)
            for kind in (False, True)
        )
        attended = [each for each in ops if each.demand.work == "attention"]
        first, second, third, fourth = _fit(attended, _attention_features, op)
        paces, product_column = _fit_products(
            [each for each in ops if each.demand.work == "product" and _rows(each)], op
        )
        step, sequence = nonnegative(
            np.array([(1.0, each.size.sequences) for each in steps], np.float64),
            np.array([each.seconds for each in steps]),
        )
        return cls(
            op=op,
            product_column=product_column,
            paces=paces,
            attention=(first, second, third, fourth),
            cache_column=(plain, max(plain, normed)),
            row_column=row_column,
            step=step,
            sequence=sequence,
        )

    def pace(self, form: str) -> Pace:
        """Raises ConfigError where products in this form were not measured."""
        for each in self.paces:
            if each.form == form:
                return each
        raise ConfigError(
            f"weights in {form} were not measured on this machine, but "
            f"{', '.join(each.form for each in self.paces)}; take --quantization int8 or int4, or "
            "a checkpoint of floats"
        )

    def op_seconds(self, demand: Demand, size: StepSize) -> float:
        """The time of an op."""
        count = demand.count(size)
        columns = count * demand.columns
        match demand.work:
            case "product":
                if count == 0:
                    return self.op
                weights = demand.multiply_adds * _experts(demand, count)
                pace = self.pace(demand.form).at(_per_expert(demand, count))
                return self.op + weights * pace + columns * self.product_column
            case "attention":
                features = _attention_features(OpObservation(demand, size, 0.0))
                return self.op + float(np.dot(features, self.attention))
            case "cache":
                return self.op + columns * self.cache_column[demand.normed]
            case "rows" | "state":
                return self.op + columns * self.row_column


@dataclass(frozen=True)
class FittedTime:
    """The :class:`~penstock.sizing.step_time.StepTime` of a plan on a machine that was measured."""

    times: MachineTimes
    costs: PlanCosts

    def seconds(self, size: StepSize) -> float:
        ops = sum(count * self.times.op_seconds(each, size) for each, count in self.costs.counts)
        return ops + self.times.step + self.times.sequence * size.sequences


def _rows(each: OpObservation) -> int:
    return each.demand.count(each.size)


def _experts(demand: Demand, count: int) -> float:
    """The number of experts whose weights so many rows need; 1 without experts."""
    if demand.experts == 0:
        return 1.0
    return demand.experts * demand.touched(count // demand.rows.times)


def _per_expert(demand: Demand, count: int) -> int:
    return max(round(count / _experts(demand, count)), 1)


def _attention_features(each: OpObservation) -> tuple[float, float, float, float]:
    cost = each.demand.cost(each.size)
    columns = float(each.demand.columns)
    return (
        each.size.sequences * columns,
        float(cost.num_bytes),
        cost.operations / 2,
        each.size.tokens * columns,
    )


def _column(observed: Sequence[OpObservation], op: float) -> float:
    """Seconds of each column of each row; 0 where nothing was observed."""
    found = [each for each in observed if _rows(each)]
    if not found:
        return 0.0
    (column,) = _fit(found, lambda each: (_rows(each) * each.demand.columns,), op)
    return column


def _fit_products(observed: Sequence[OpObservation], op: float) -> tuple[tuple[Pace, ...], float]:
    """The pace of every form at every number of rows, and the time of a column, for all at once."""
    keys = sorted({(each.demand.form, _rows(each)) for each in observed})
    place = {key: index for index, key in enumerate(keys)}
    matrix = np.zeros((len(observed), len(keys) + 1))
    for line, each in zip(matrix, observed, strict=True):
        line[place[each.demand.form, _rows(each)]] = each.demand.multiply_adds
        line[-1] = _rows(each) * each.demand.columns
    *paces, column = nonnegative(matrix, np.array([max(o.seconds - op, 1e-9) for o in observed]))
    forms = sorted({form for form, _ in keys})
    made = []
    for form in forms:
        points = [(rows, paces[place[form, rows]]) for f, rows in keys if f == form]
        made.append(Pace(form, tuple(r for r, _ in points), _bounded(points)))
    return tuple(made), column


def _bounded(points: Sequence[tuple[int, float]]) -> tuple[float, ...]:
    """Paces of ascending numbers of rows, none above that of several products of fewer rows. It is
    only where others had the cores: an op of 512 rows is long enough to lose its turn, which one of
    a hundred seldom is."""
    found: list[float] = []
    for index, (rows, pace) in enumerate(points):
        parts = (-(-rows // points[i][0]) * found[i] for i in range(index))
        found.append(min((pace, *parts)))
    return tuple(found)


def _fit(
    observed: Sequence[OpObservation],
    features: Callable[[OpObservation], Iterable[float]],
    op: float = 0.0,
) -> tuple[float, ...]:
    matrix = np.array([tuple(features(each)) for each in observed], np.float64)
    return nonnegative(matrix, np.array([max(each.seconds - op, 1e-9) for each in observed]))
