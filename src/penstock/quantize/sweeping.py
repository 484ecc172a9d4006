"""Measures how sensitive a model is to the rounding of its matrices, in one pass through layers.

What a layer makes of the samples is kept for the model as it is, and for each way in which matrices
of the layers before have been rounded; so every layer is bound once for all of those, and once more
for each way in which its own are. Behind the last one there are the model's predictions with each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from penstock.backends.gram import Gram
from penstock.engine.piece_run import Bind, PieceRun
from penstock.plan.ops import Buffer, BufferName
from penstock.plan.pieces import Piece
from penstock.quantize.grid import F32, require_finite
from penstock.quantize.hessian import Hessian
from penstock.quantize.hidden import HiddenFile
from penstock.quantize.inputs import Input, add_rows, hessians_of, in_passes
from penstock.quantize.layers import Target
from penstock.quantize.mixed import BudgetedQuantization
from penstock.quantize.progress import Progress, Tell
from penstock.quantize.sensitivity import FLOATS, Sensitivity, Sweep, Unit, measured_bits
from penstock.quantize.unfinished import Unfinished
from penstock.weights.tensor_file import NUMPY_DTYPES

PHASE: Final = "measuring"
_TOKENS: Final = 2048
"""Tokens that are read, about: whole samples."""
_JUDGED: Final = 512
"""Tokens whose predictions are compared, at most."""
_CHUNK: Final = 32
"""Tokens whose logits are in memory at a time."""


def swept(
    work: BudgetedQuantization,
    folder: Unfinished,
    bind: Bind,
    threads: int,
    experts_bytes: int,
    tell: Tell,
) -> Sweep:
    """The sensitivities of all units; those of a run before, where it had come so far.

    ``experts_bytes`` are those of Hessians of experts that are in memory at a time. Raises
    WeightError and OSError.
    """
    path = folder.sweep
    if path.exists():
        return msgspec.json.decode(path.read_bytes(), type=Sweep)
    run = _SweepRun(work, folder, bind, threads, experts_bytes, tell)
    first = run.resume()
    for index in range(first, len(work.layers.layers)):
        run.layer(index)
    sweep = run.judged()
    folder.write_synced(path, msgspec.to_builtins(sweep, str_keys=True))
    run.forget(len(work.layers.layers))
    return sweep


class _SweepRun:
    """One pass through the layers.

    A *way* is the model as it is, the first, or with one unit rounded to some bits; ways are in the
    order of their layers.
    """

    def __init__(
        self,
        work: BudgetedQuantization,
        folder: Unfinished,
        bind: Bind,
        threads: int,
        experts_bytes: int,
        tell: Tell,
    ) -> None:
        self._work, self._folder, self._experts_bytes = work, folder, experts_bytes
        self._bind, self._threads, self._tell = bind, threads, tell
        tokens = work.samples.tokens
        self._samples = tokens[: max(1, _TOKENS // len(tokens[0]))]
        self._length = len(tokens[0])
        self._judged = min(self._length, max(1, _JUDGED // len(self._samples)))
        layers = work.layers
        self._gram = Gram(layers.dtype, threads)
        self._weights = work.source.weights(layers.weights, layers.rounded, layers.dtype)
        self._count = len(work.layers.layers)
        self._measured = measured_bits(work.allowed)
        self._errors: list[dict[int, float]] = []
        """Those of the units of the layers that are done."""

    def resume(self) -> int:
        """Take up what a run before has left; the layer to go on with."""
        for index in range(self._count, 0, -1):
            if self._folder.sweep_rows(index).exists():
                text = self._folder.sweep_errors(index).read_bytes()
                self._errors = msgspec.json.decode(text, type=list[dict[int, float]])
                return index
        return 0

    def layer(self, index: int) -> None:
        """Run a layer with all ways of the layers before, and with its own."""
        layer = self._work.layers.layers[index]
        piece = layer.piece if index + 1 < self._count else self._work.layers.last
        before = self._ways(index)
        own = [unit for unit in self._work.units if unit.layer == index]
        total = len(before) + len(own) * len(self._measured)
        inputs = [target.input for target in layer.targets if target.input is not None]
        passes = list(in_passes(inputs, self._experts_bytes)) or [()]
        bits = [each for each in self._work.allowed if each != FLOATS]
        errors = [dict.fromkeys(bits, 0.0) for _ in own]
        with HiddenFile(self._folder.sweep_rows(index + 1), piece.made, 0).written() as written:
            with self._run(piece, {}) as run:
                for way in range(len(before)):
                    hessians = hessians_of(passes[0] if way == 0 else (), self._gram)
                    for number, given in self._given(index, way):
                        returned = run(self._samples[number], given)
                        add_rows(hessians, returned)
                        written.add(self._kept(index, piece.made, returned))
                    self._add_errors(own, hessians, errors)
                    self._say(index, (way + 1) / total)
                for some in passes[1:]:
                    hessians = hessians_of(some, self._gram)
                    for number, given in self._given(index, 0):
                        add_rows(hessians, run(self._samples[number], given))
                    self._add_errors(own, hessians, errors)
            done = len(before)
            for unit in own:
                for number_of_bits in self._measured:
                    values = self._rounded(unit, number_of_bits)
                    with self._run(piece, values) as run:
                        for number, given in self._given(index, 0):
                            returned = run(self._samples[number], given)
                            written.add(self._kept(index, piece.made, returned))
                    done += 1
                    self._say(index, done / total)
            self._errors += errors
            encoded = [{str(b): e for b, e in each.items()} for each in self._errors]
            self._folder.write_synced(self._folder.sweep_errors(index + 1), encoded)
        self.forget(index)

    def judged(self) -> Sweep:
        """Compare the predictions with each way with those of the model as it is."""
        head = self._work.layers.head
        ways = self._ways(self._count)
        sums = np.zeros(len(ways))
        hidden = HiddenFile(self._folder.sweep_rows(self._count), head.given, self._judged)
        starts = range(0, self._judged, _CHUNK)
        logits = head.observed[-1]  # which a soft cap or a factor writes once more
        with (
            PieceRun(self._bind, head, self._weights, _CHUNK, self._threads) as run,
            ThreadPoolExecutor(self._threads) as pool,
        ):
            for number in range(len(self._samples)):
                for place, start in enumerate(starts):
                    rows = slice(start, min(start + _CHUNK, self._judged))
                    tokens = self._samples[number][: rows.stop - rows.start]
                    base: F32 | None = None
                    for way in range(len(ways)):
                        given = hidden.read(way * len(self._samples) + number)
                        found = run(tokens, {name: each[rows] for name, each in given.items()})
                        if base is None:
                            base = found[logits.name].copy()
                            shares = _shares(base)
                        else:
                            own = pool.map(divergence, base, shares, found[logits.name])
                            sums[way] += sum(own)
                    part = (number + (place + 1) / len(starts)) / len(self._samples)
                    self._say(self._count - 1, part, "predictions")
        means = (sums / (len(self._samples) * self._judged)).tolist()
        found_by = dict(zip(ways, means, strict=True))
        units = tuple(
            Sensitivity(
                tuple(target.module for target in unit.targets),
                self._errors[place],
                {bits: found_by[place, bits] for bits in self._measured},
            )
            for place, unit in enumerate(self._work.units)
        )
        return Sweep(len(self._samples), self._judged, units)

    def forget(self, index: int) -> None:
        """Remove what the layer ``index`` was given, which is needed no more."""
        self._folder.sweep_rows(index).unlink(missing_ok=True)
        self._folder.sweep_errors(index).unlink(missing_ok=True)

    def _ways(self, index: int) -> list[tuple[int, int] | None]:
        """Those of all layers before ``index``: the place of the unit, and its bits."""
        places = (place for place, unit in enumerate(self._work.units) if unit.layer < index)
        return [None, *((place, bits) for place in places for bits in self._measured)]

    def _add_errors(
        self,
        units: Sequence[Unit],
        hessians: Mapping[Input, Hessian],
        errors: Sequence[dict[int, float]],
    ) -> None:
        """Add, to those of each unit by bits, the squared errors of the matrices whose inputs are
        in ``hessians``."""
        for unit, own in zip(units, errors, strict=True):
            for target in unit.targets:
                assert target.input is not None
                if target.input not in hessians:
                    continue
                hessian = hessians[target.input]
                hessian.sums(target.name)  # which refuses what is not finite
                matrix = self._matrix(target)
                for bits in own:
                    made = self._work.form(bits).round(matrix, target.name).dequantize()
                    own[bits] += max(hessian.loss(made - matrix), 0.0)

    def _rounded(self, unit: Unit, bits: int) -> dict[str, NDArray[np.generic]]:
        """The matrices of a unit, by their modules, in the type in which the model runs."""
        values: dict[str, NDArray[np.generic]] = {}
        for target in unit.targets:
            made = self._work.form(bits).round(self._matrix(target), target.name).dequantize()
            values[target.module] = made.astype(NUMPY_DTYPES[self._work.layers.dtype])
        return values

    def _matrix(self, target: Target) -> F32:
        matrix = self._work.source.matrix(target.source)
        require_finite(matrix, target.name)
        return matrix

    def _run(self, piece: Piece, values: Mapping[str, NDArray[np.generic]]) -> PieceRun:
        weights = self._weights.replaced(values) if values else self._weights
        return PieceRun(self._bind, piece, weights, self._length, self._threads)

    def _given(self, index: int, way: int) -> Iterator[tuple[int, dict[BufferName, F32]]]:
        """What a layer is given of each sample, one way."""
        if index == 0:
            yield from self._weights.looked_up(self._work.layers.lookups, self._samples)
            return
        piece = self._work.layers.layers[index].piece
        hidden = HiddenFile(self._folder.sweep_rows(index), piece.given, self._length)
        for number in range(len(self._samples)):
            yield number, hidden.read(way * len(self._samples) + number)

    def _kept(
        self, index: int, made: Sequence[Buffer], returned: Mapping[BufferName, F32]
    ) -> dict[BufferName, F32]:
        """All rows or, behind the last layer, those that are judged: evenly apart."""
        values = {buffer.name: returned[buffer.name] for buffer in made}
        if index + 1 < self._count:
            return values
        step = self._length // self._judged
        return {name: each[step // 2 :: step][: self._judged] for name, each in values.items()}

    def _say(self, index: int, part: float, doing: str = "rounding one at a time") -> None:
        self._tell(Progress(index, self._count, part, doing, PHASE))


def _shares(logits: F32) -> F32:
    """What share of probability each token has, ``[rows, tokens]``."""
    shares: F32 = np.exp(logits - logits.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True, dtype=np.float64).astype(np.float32)
    return shares


def divergence(base: F32, shares: F32, logits: F32) -> float:
    """The divergence of ``logits`` ``[tokens]`` from ``base``, in nats; ``shares`` are the
    probabilities of ``base``.

    With d the difference of logits less its mean, it is ``log(sum(p * exp(-d)))``: small where d
    is, and not the difference of large numbers.
    """
    change = base - logits
    mean = np.float32(np.dot(shares, change))
    ratio = np.dot(shares, np.expm1(np.minimum(mean - change, np.float32(80))))
    return max(float(np.log1p(ratio)), 0.0)
