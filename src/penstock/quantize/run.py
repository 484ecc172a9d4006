"""Quantizes a checkpoint, layer by layer."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from penstock.backends.gram import Gram
from penstock.engine.piece_run import Bind, PieceRun
from penstock.errors import WeightError
from penstock.plan.ops import BufferName
from penstock.plan.pieces import Piece
from penstock.quantize.changed import Changed, balance
from penstock.quantize.fine_tuning import FineTuning, Outcome, fine_tuned, kept_of, require_alone
from penstock.quantize.forms.form import Coded
from penstock.quantize.grid import require_finite
from penstock.quantize.hessian import Hessian
from penstock.quantize.hidden import HiddenFile
from penstock.quantize.inputs import EXPERTS_BYTES, Input, add_rows, hessians_of, in_passes
from penstock.quantize.layers import Layer, Target
from penstock.quantize.mixed import BudgetedQuantization, Choice
from penstock.quantize.progress import Progress, Tell
from penstock.quantize.quantization import Quantization
from penstock.quantize.record import FINE_TUNING, SENSITIVITY, record_of
from penstock.quantize.sweeping import swept
from penstock.quantize.tensor_file import NewTensor, write_tensors
from penstock.quantize.unfinished import Unfinished
from penstock.weights.identity import stamped_weights
from penstock.weights.tensor_file import NUMPY_DTYPES

F32 = NDArray[np.float32]

READING, ROUNDING, WRITING = 0.45, 0.1, 0.45
"""Which parts of a layer's time its phases take, about: samples are read before its matrices are
rounded, and again after."""


@dataclass(frozen=True)
class RoundedMatrix:
    """What became of one matrix."""

    module: str
    error: float | None = None
    """The squared error of its outputs for the samples, as a part of their squares; None where
    nothing was measured."""
    few: bool = False
    """Whether it multiplied so few rows of the samples that it was rounded to nearest."""


@dataclass(frozen=True)
class Quantized:
    """A checkpoint that has been written."""

    folder: Path
    matrices: int
    num_bytes: int
    """Bytes of all weights, as they are stored."""
    source_bytes: int
    rounded: tuple[RoundedMatrix, ...]
    """The matrices that this run has rounded."""
    resumed: int
    """Layers that a run before had done."""
    chosen: Choice | None = None
    """The bits, where they were chosen."""
    tuned: Outcome | None = None
    """What training after rounding has gained."""


Work = Quantization | BudgetedQuantization


def quantize(
    work: Work,
    out: Path,
    bind: Bind,
    threads: int,
    *,
    settings: Mapping[str, object] | None = None,
    restart: bool = False,
    experts_bytes: int = EXPERTS_BYTES,
    tuning: FineTuning | None = None,
    tell: Tell = lambda progress: None,
) -> Quantized:
    """Write the quantized checkpoint to the folder ``out``, which is there in full or not at all.

    ``bind`` is of the backend that runs the model. ``settings`` are recorded: where a run was
    interrupted, another with the same goes on behind the last layer that was done, and writes the
    same bytes. Memory holds a layer, and the Hessians of what its matrices multiply: of experts no
    more than ``experts_bytes`` of them, or one, so a layer may read the samples several times; with
    ``tuning``, which trains what was rounded, it holds the whole model. Raises ConfigError,
    WeightError and OSError.
    """
    if tuning is not None:
        require_alone(work.layers.targets)
    record = record_of(work, settings or {}, None if tuning is None else tuning.text)
    rest = work.layers.others(work.source.tensors)
    folder = Unfinished(out, record, len(work.layers.layers) + bool(rest), restart)
    try:
        chosen: Choice | None = None
        if isinstance(work, BudgetedQuantization):
            chosen = work.chosen(swept(work, folder, bind, threads, experts_bytes, tell))
            work = work.decided(chosen.bits)
        run = _Run(work, folder, bind, threads, experts_bytes, tuning, tell)
        count = len(work.layers.layers)
        resumed = sum(folder.shard(index).exists() for index in range(count))
        for index in range(count):
            if not folder.shard(index).exists():
                run.layer(index)
        if rest:
            run.others(rest)
        figures: dict[str, object] = {} if chosen is None else {SENSITIVITY: chosen.figures}
        outcome: Outcome | None = None
        if tuning is not None:
            outcome = fine_tuned(work, folder, tuning, threads, tell)
            figures[FINE_TUNING] = outcome.figures
        size = folder.finish(work.source.folder, work.config, figures)
    finally:
        folder.close()
    matrices = len(tuple(work.layers.targets))
    source_bytes = sum(each.stamp.bytes for each in stamped_weights(work.source.folder))
    rounded = tuple(run.rounded)
    return Quantized(out, matrices, size, source_bytes, rounded, resumed, chosen, outcome)


class _Run:
    """The layers of one run."""

    def __init__(
        self,
        work: Quantization,
        folder: Unfinished,
        bind: Bind,
        threads: int,
        experts_bytes: int,
        tuning: FineTuning | None,
        tell: Tell,
    ) -> None:
        self._work, self._folder = work, folder
        self._bind, self._threads, self._tell = bind, threads, tell
        self._experts_bytes, self._tuning = experts_bytes, tuning
        self._layers = work.layers.layers
        self._calibrated = work.method.calibrated
        layers = work.layers
        self._weights = work.source.weights(layers.weights, layers.rounded, layers.dtype)
        self._gram = Gram(layers.dtype, threads)
        self._samples = () if work.samples is None else work.samples.tokens
        self.rounded: list[RoundedMatrix] = []

    def layer(self, index: int) -> None:
        """Round the matrices of a layer, make what the next one is given, and write it."""
        layer, work = self._layers[index], self._work
        changed = Changed(work.source)
        written: list[NewTensor] = []
        trained: list[NewTensor] = []
        values: dict[str, NDArray[np.generic]] = {}
        passes = self._passes(layer)
        for number, inputs in enumerate(passes):
            first, share = number / len(passes), 1 / len(passes)
            hessians: dict[str, Hessian] = {}
            if self._calibrated:
                try:
                    hessians = self._measured(index, inputs, first, share)
                except WeightError:  # of what a matrix made, which may have made it so
                    for target in layer.targets:
                        require_finite(changed.matrix(target), target.name)
                    raise
                if number == 0:
                    hessians = balance(layer, work.method, changed, hessians)
                first, share = (READING + ROUNDING) * first, ROUNDING * share
                first += READING / len(passes)
            targets = [target for target in layer.targets if target.input in inputs]
            for place, target in enumerate(targets):
                self._say(index, first + share * place / len(targets), target.module)
                made = self._made(layer, target, changed, hessians.get(target.module))
                written += work.stored(target, made)
                if self._tuning is not None:
                    method, matrix = work.method.of(target.module), changed.matrix(target)
                    trained += kept_of(target.module, method, made, matrix, self._tuning)
                if self._calibrated:
                    rounded = made.dequantize().astype(NUMPY_DTYPES[work.layers.dtype])
                    values[target.module] = rounded
                    changed.forget(target)
        if self._calibrated and index + 1 < len(self._layers):
            self._hand_on(index, {**changed.arrays(work.layers.dtype), **values})
        matrices = {name for target in layer.targets for name in target.tensors}
        own = self._work.layers.owned[index]
        written += [changed.stored(name) for name in own if name in changed.names]
        kept = [name for name in own if name not in matrices and name not in changed.names]
        if self._tuning is not None:
            write_tensors(self._folder.kept(index), trained)
        self._folder.write_shard(index, [*written, *self._kept(kept)])

    def _passes(self, layer: Layer) -> list[tuple[Input | None, ...]]:
        """The inputs of a layer's matrices that are measured together, and rounded then."""
        inputs = dict.fromkeys(target.input for target in layer.targets)
        if not self._calibrated:
            return [tuple(inputs)]
        known = [each for each in inputs if each is not None]
        return list(in_passes(known, self._experts_bytes))

    def _made(
        self, layer: Layer, target: Target, changed: Changed, hessian: Hessian | None
    ) -> Coded:
        """A matrix, rounded."""
        matrix = changed.matrix(target)
        require_finite(matrix, target.name)
        joined = [changed.matrix(each) for each in layer.joined_with(target)]
        method = self._work.method.of(target.module).of_joined(joined)
        if hessian is None:
            self.rounded.append(RoundedMatrix(target.module))
            return method.rounded(matrix, None, target.name)
        made = method.rounded(matrix, None if hessian.is_void else hessian, target.name)
        whole = hessian.loss(matrix)
        error = hessian.loss(made.dequantize() - matrix) / whole if whole else 0.0
        self.rounded.append(RoundedMatrix(target.module, error, hessian.is_void))
        return made

    def others(self, names: Sequence[str]) -> None:
        """Write these tensors, which no layer has."""
        path = self._folder.shard(len(self._layers))
        if path.exists():
            return
        self._say(len(self._layers) - 1, 1.0, "what is not quantized")
        self._folder.write_shard(len(self._layers), list(self._kept(names)))

    def _kept(self, names: Sequence[str]) -> Iterator[NewTensor]:
        """Tensors that are no matrices of layers: as they are, but for embeddings that are to be
        rounded."""
        embeddings = self._work.embeddings
        rounded = frozenset[str]() if embeddings is None else embeddings.tensors
        dropped = frozenset[str]() if embeddings is None else embeddings.dropped
        for name in names:
            if embeddings is not None and name in rounded:
                yield from embeddings.written(name)
            elif name not in dropped:
                yield from self._work.source.copied([name])

    def _measured(
        self, index: int, inputs: Collection[Input | None], first: float, share: float
    ) -> dict[str, Hessian]:
        """The Hessian of what the matrix of each module of a layer multiplies, as it is in floats,
        of those that multiply one of ``inputs``."""
        layer = self._layers[index]
        if layer.measured is None:
            return {}
        targets = [each for each in layer.targets if each.input in inputs]
        hessians = hessians_of([each for each in inputs if each is not None], self._gram)
        count = len(self._samples)
        with self._run(layer.measured, {}) as run:
            for number, given in self._given(index):
                returned = run(self._samples[number], given)
                add_rows(hessians, returned)
                done = READING * share * (number + 1) / count
                self._say(index, (READING + ROUNDING) * first + done, "reading")
        found: dict[str, Hessian] = {}
        for target in targets:
            if target.input is not None:
                found[target.module] = hessians[target.input]
                found[target.module].sums(target.name)  # which refuses what is not finite
        return found

    def _hand_on(self, index: int, values: Mapping[str, NDArray[np.generic]]) -> None:
        """Write what a layer with the matrices ``values`` makes of every sample."""
        hidden = self._hidden(index + 1)
        with ExitStack() as stack:
            run = stack.enter_context(self._run(self._layers[index].piece, values))
            written = stack.enter_context(hidden.written())
            for number, given in self._given(index):
                returned = run(self._samples[number], given)
                written.add(returned)
                part = READING + ROUNDING + WRITING * (number + 1) / len(self._samples)
                self._say(index, part, "handing on")

    def _run(self, piece: Piece, values: Mapping[str, NDArray[np.generic]]) -> PieceRun:
        weights = self._weights.replaced(values) if values else self._weights
        return PieceRun(self._bind, piece, weights, len(self._samples[0]), self._threads)

    def _given(self, index: int) -> Iterator[tuple[int, dict[BufferName, F32]]]:
        """What a layer is given of each sample: what the one before it has handed on or, before
        the first, the rows that tokens look up."""
        if index == 0:
            yield from self._weights.looked_up(self._work.layers.lookups, self._samples)
            return
        hidden = self._hidden(index)
        for number in range(len(self._samples)):
            yield number, hidden.read(number)

    def _hidden(self, index: int) -> HiddenFile:
        buffers = self._layers[index].piece.given
        return HiddenFile(self._folder.hidden(index), buffers, len(self._samples[0]))

    def _say(self, index: int, part: float, doing: str) -> None:
        self._tell(Progress(index, len(self._layers), part, doing))
