"""Checkpoints whose matrices have as many bits each as a budget allows and the model needs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from penstock.errors import ConfigError
from penstock.quantize.budget import Budget, Option, least_loss
from penstock.quantize.embeddings import Embeddings
from penstock.quantize.forms.integers import Integers
from penstock.quantize.forms.mixed import MixedIntegers
from penstock.quantize.layers import Layers, Target
from penstock.quantize.methods import Awq, Gptq, Method, RoundToNearest
from penstock.quantize.quantization import Quantization
from penstock.quantize.samples import Samples
from penstock.quantize.sensitivity import FLOATS, Sweep, Unit
from penstock.quantize.source import SourceModel
from penstock.weights.tensor_file import NUMPY_DTYPES

_FEWEST: Final = 2
OfIntegers = RoundToNearest | Gptq | Awq
"""The methods that round to integers."""


@dataclass(frozen=True)
class Mixed:
    """One method with several numbers of bits."""

    methods: Mapping[int, Method]
    """The method with each number of bits."""
    form: MixedIntegers

    @property
    def _any(self) -> Method:
        return next(iter(self.methods.values()))

    @property
    def name(self) -> str:
        return self._any.name

    @property
    def calibrated(self) -> bool:
        return self._any.calibrated

    @property
    def by_index(self) -> bool:
        return self._any.by_index

    def of(self, module: str) -> Method:
        """The method with the bits of the module."""
        return self.methods[self.form.modules[module]]


@dataclass(frozen=True)
class Choice:
    """The bits that were chosen."""

    bits: tuple[int, ...]
    """Those of each unit."""
    matrices: Mapping[int, int]
    """How many matrices have each number of bits."""
    bits_a_weight: float
    """Bits of all that is stored, scales included, of the matrices that stay as they are, too."""
    figures: Mapping[str, object]
    """What they were chosen by, for the record."""


class BudgetedQuantization:
    """A checkpoint, and the budget under which bits of its matrices are chosen once it is known
    what each loses.

    All that can be refused is refused when it is made, before a weight is read.
    """

    def __init__(
        self,
        source: SourceModel,
        methods: Mapping[int, Method],
        budget: Budget,
        samples: Samples | None,
        floats: bool = True,
        embeddings: Embeddings | None = None,
    ) -> None:
        """``methods``, one and the same with all bits that matrices may have, round to integers in
        the format of compressed-tensors. ``floats``: matrices may also stay as they are.
        ``embeddings`` are rounded, too. Raises ConfigError and ModelError."""
        if samples is None:
            raise ConfigError("--bits auto needs a text: --calibration FILE")
        works = {
            bits: Quantization(source, each, samples, embeddings=embeddings)
            for bits, each in methods.items()
        }
        self.source, self.methods, self.samples = source, methods, samples
        self.embeddings = embeddings
        self.budget = budget
        uniform = works[max(works)]
        self.layers: Layers = uniform.layers
        self.notes = uniform.notes
        self.config = uniform.config
        """``config.json`` of a checkpoint with the most bits throughout, which stands for all that
        the choice is among."""
        self.units: tuple[Unit, ...] = tuple(_units(self.layers))
        self.allowed: tuple[int, ...] = (*sorted(methods), *([FLOATS] if floats else []))
        """Bits that matrices may have; :data:`~penstock.quantize.sensitivity.FLOATS` are those that
        stay as they are."""
        targets = list(self.layers.targets)
        matrices = {name for target in targets for name in target.tensors}
        others = 0
        if embeddings is not None:
            matrices |= embeddings.tensors | embeddings.dropped
            others = embeddings.num_bytes()
        others += sum(source.num_bytes(each) for each in source.tensors if each not in matrices)
        self._weights = sum(math.prod(target.shape) for target in targets)
        self._num_bytes = budget.of_matrices(self._weights, others)
        self._require_room(others)

    def _require_room(self, others: int) -> None:
        def said(num_bytes: int) -> str:
            if self.budget.bits is not None:
                return f"{8 * num_bytes / self._weights:.3f} bits a weight"
            return f"{(num_bytes + others) / 1e6:,.3f} MB"

        sizes = [[self.num_bytes(unit, bits) for bits in self.allowed] for unit in self.units]
        least, most = sum(map(min, sizes)), sum(map(max, sizes))
        if self._num_bytes < least:
            grouped = self.form(min(self.methods)).group_size is not None
            ways = ["give more", *(["a larger --group-size"] if grouped else [])]
            if min(self.allowed) > _FEWEST:
                ways.append(f"{_FEWEST} among --allowed-bits")
            raise ConfigError(
                f"--budget {self.budget} is less than the fewest bits take, with scales: "
                f"{said(least)}; {', or '.join(ways)}"
            )
        if FLOATS in self.allowed and self._num_bytes >= most:
            raise ConfigError(
                f"--budget {self.budget} holds the model as it is, which takes {said(most)}; give "
                "less"
            )

    def form(self, bits: int) -> Integers:
        """The form of matrices with so many bits."""
        form = self.methods[bits].form
        assert isinstance(form, Integers)
        return form

    def num_bytes(self, unit: Unit, bits: int) -> int:
        """Bytes of a unit's matrices with so many bits, with all that is stored beside codes."""
        if bits == FLOATS:
            names = {name for target in unit.targets for name in target.tensors}
            return sum(map(self.source.num_bytes, names))
        return sum(self._matrix_bytes(target, bits) for target in unit.targets)

    def _matrix_bytes(self, target: Target, bits: int) -> int:
        """As :mod:`~penstock.quantize.forms.compressed_tensors` stores it."""
        n, k = target.shape
        grid = self.form(bits).grid
        groups = grid.groups(k)
        words = n * -(-k * bits // 32)
        if not grid.symmetric:
            words += -(-n * bits // 32) * groups
        if self.methods[bits].by_index:
            words += k
        scales = n * groups * NUMPY_DTYPES[grid.scale_dtype].itemsize
        return 4 * words + scales + 2 * np.dtype(np.int64).itemsize

    def chosen(self, sweep: Sweep) -> Choice:
        """The bits of each unit, of those that are allowed, with which least is lost."""
        options: list[list[Option]] = []
        for unit, own in zip(self.units, sweep.units, strict=True):
            # More bits that were measured to lose more were measured inexactly.
            losses = np.minimum.accumulate([own.loss(bits) for bits in self.allowed])
            sizes = [self.num_bytes(unit, bits) for bits in self.allowed]
            options.append([Option(*each) for each in zip(sizes, losses.tolist(), strict=True)])
        found = least_loss(options, self._num_bytes)
        assert found is not None  # since the fewest bits of all have room
        bits = tuple(self.allowed[each] for each in found)
        matrices = Counter(dict.fromkeys(self.allowed, 0))
        for unit, number in zip(self.units, bits, strict=True):
            matrices[number] += len(unit.targets)
        taken = sum(self.num_bytes(*each) for each in zip(self.units, bits, strict=True))
        a_weight = 8 * taken / self._weights
        return Choice(bits, +matrices, a_weight, self._figures(sweep, bits, a_weight))

    def decided(self, bits: Sequence[int]) -> Quantization:
        """What is to be done with so many bits for each unit."""
        modules = {
            target.module: own
            for unit, own in zip(self.units, bits, strict=True)
            for target in unit.targets
            if own != FLOATS
        }
        grids = {each: self.form(each).grid for each in self.methods}
        method = Mixed(self.methods, MixedIntegers(grids, modules))
        return Quantization(self.source, method, self.samples, self.layers, self.embeddings)

    def _figures(
        self, sweep: Sweep, bits: Sequence[int], bits_a_weight: float
    ) -> dict[str, object]:
        units: list[dict[str, object]] = []
        lost = 0.0
        for unit, own, chosen in zip(self.units, sweep.units, bits, strict=True):
            losses = {each: own.loss(each) for each in self.allowed}
            lost += losses[chosen]
            units.append(
                {
                    "modules": list(own.modules),
                    "bits": chosen,
                    "bytes": {each: self.num_bytes(unit, each) for each in self.allowed},
                    "nats_a_token": losses,
                    "measured": sorted(own.divergences),
                    "squared_errors": own.errors,
                }
            )
        return {
            "measure": "Kullback-Leibler divergence of predictions, one unit rounded at a time",
            "windows": sweep.windows,
            "tokens_of_each": sweep.rows,
            "bits_a_weight": bits_a_weight,
            "nats_a_token": lost,
            "units": units,
        }


def _units(layers: Layers) -> list[Unit]:
    found: list[Unit] = []
    for index, layer in enumerate(layers.layers):
        joined: dict[str, list[Target]] = {}
        for target in layer.targets:
            if target.input is None:
                raise ConfigError(
                    f"--bits auto does not know what {target.module} multiplies; give --bits a "
                    "number"
                )
            joined.setdefault(target.input.engine_input, []).append(target)
        found += [Unit(index, tuple(targets)) for targets in joined.values()]
    return found
