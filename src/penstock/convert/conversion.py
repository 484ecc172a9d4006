"""One model into one GGUF file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import ml_dtypes
import numpy as np

from penstock.convert.checkpoint_content import CheckpointContent
from penstock.convert.content import Content, SourceTensor, Values
from penstock.convert.gguf_content import GgufContent
from penstock.convert.new_file import NewFile, new_file, require_absent
from penstock.convert.types import FileType, TypeChoice
from penstock.errors import WeightError
from penstock.gguf.names import is_gguf
from penstock.gguf.types import type_named
from penstock.gguf.writing import FileLayout, NewTensor, lay_out, pair
from penstock.quant.encode import ENCODERS, MAX_VALUE, encode
from penstock.quant.formats import GGUF_FORMATS

_QUANTIZATION_VERSION: Final = 2
_MAX_BF16: Final = float.fromhex("0x1.FEp127")
_TASK_VALUES: Final = 1 << 20
"""Values that a thread rounds and writes at a time."""

Progress = Callable[[int, int], None]
"""Is told how many bytes are written, and how many will be."""


@dataclass(frozen=True)
class Converted:
    """A file that has been written."""

    path: Path
    size: int
    types: Mapping[str, int]
    """How many tensors are in each type, the most frequent first."""
    taken: int
    """How many of them were taken over as they were."""
    notes: tuple[str, ...]


def convert(
    model: Path,
    target: Path,
    wanted: FileType,
    *,
    name: str | None = None,
    default_name: str = "",
    replace: bool = False,
    threads: int = 1,
    progress: Progress = lambda done, total: None,
) -> Converted:
    """Write the model in a folder or GGUF file to ``target``.

    Memory holds a few matrices at a time. ``name`` is what the file calls the model; without it
    what a GGUF file called it, else ``default_name``. With ``replace`` a file that is there is
    replaced, at the end. Raises ConfigError where ``target`` cannot be written to; ModelError,
    WeightError or TokenizerError for a model that cannot be; WriteError where the system refuses.
    """
    require_absent(target, replace)
    content: Content
    if is_gguf(model):
        content = GgufContent(model, name)
    else:
        content = CheckpointContent(model, name or default_name or model.resolve().name)
    tied = all(each.name != "output.weight" for each in content.tensors)
    choice = TypeChoice(wanted, content.num_layers, content.num_experts, tied)
    tensors = [
        NewTensor(each.name, type_named(_type(choice, each)), each.shape)
        for each in content.tensors
    ]
    pairs = {**content.pairs(), "general.file_type": pair("general.file_type", wanted.number)}
    if any(each.type.name in GGUF_FORMATS for each in tensors):
        key = "general.quantization_version"
        pairs[key] = pair(key, _QUANTIZATION_VERSION)
    layout = lay_out(list(pairs.values()), tensors)
    with new_file(target, layout.size, replace) as file:
        writer = _Writer(content, tensors, layout, file, threads, progress)
        writer.write()
        file.write(layout.head, 0)
    counts = Counter(each.type.name for each in tensors)
    return Converted(target, layout.size, dict(counts.most_common()), writer.taken, content.notes)


def _type(choice: TypeChoice, tensor: SourceTensor) -> str:
    return choice.of(tensor.name, tensor.shape)


class _Writer:
    """Rounds and writes tensors, on threads."""

    def __init__(
        self,
        content: Content,
        tensors: list[NewTensor],
        layout: FileLayout,
        file: NewFile,
        threads: int,
        progress: Progress,
    ) -> None:
        self._content, self._tensors, self._layout = content, tensors, layout
        self._file, self._threads, self._progress = file, threads, progress
        self._done = 0
        self.taken = 0

    def write(self) -> None:
        pool = ThreadPoolExecutor(self._threads)
        try:
            waiting: set[Future[int]] = set()
            for task in self._tasks():
                waiting.add(pool.submit(task))
                if len(waiting) > 2 * self._threads:
                    waiting = self._finished(waiting, all_of_them=False)
            self._finished(waiting, all_of_them=True)
        finally:
            pool.shutdown(cancel_futures=True)

    def _finished(self, waiting: set[Future[int]], all_of_them: bool) -> set[Future[int]]:
        while waiting:
            done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            self._done += sum(each.result() for each in done)
            self._progress(self._done, self._layout.size)
            if not all_of_them:
                break
        return waiting

    def _tasks(self) -> Iterator[Callable[[], int]]:
        sources = zip(self._content.tensors, self._tensors, self._layout.starts, strict=True)
        for source, tensor, start in sources:
            if source.stored == tensor.type.name:
                self.taken += 1
                yield self._copying(source, start)
                continue
            for part in self._content.parts(source):
                rows, columns = part.values.shape
                row_bytes = tensor.type.nbytes((columns,))
                some = max(1, _TASK_VALUES // max(columns, 1))
                for first in range(0, rows, some):
                    offset = start + (part.first + first) * row_bytes
                    yield self._rounding(tensor, part.values[first : first + some], offset)

    def _copying(self, source: SourceTensor, start: int) -> Callable[[], int]:
        def task() -> int:
            data = self._content.stored_bytes(source)
            self._file.write(data.data, start)
            return data.nbytes

        return task

    def _rounding(self, tensor: NewTensor, values: Values, offset: int) -> Callable[[], int]:
        def task() -> int:
            data = rounded(tensor, values)
            self._file.write(data, offset)
            return len(data)

        return task


def rounded(tensor: NewTensor, values: Values) -> bytes:
    """Rows of a tensor, ``[rows, columns]``, as the bytes of its type. Raises WeightError, naming
    it, for values that the type cannot hold."""
    kind = tensor.type.name
    if kind == "F32":
        return values.astype("<f4").tobytes()
    if kind == "BF16":
        halves = values.astype(ml_dtypes.bfloat16)
        if np.count_nonzero(np.isinf(halves)) != np.count_nonzero(np.isinf(values)):
            raise WeightError(
                f"{tensor.name} has values above {_MAX_BF16:.4g}, too large for BF16; take type F32"
            )
        return halves.tobytes()
    largest = np.abs(values).max(initial=0)
    if not np.isfinite(largest):
        raise WeightError(
            f"{tensor.name} has values that are not finite, which {kind} cannot hold; take type "
            "F32 or BF16, or repair the checkpoint"
        )
    if largest > MAX_VALUE:
        raise WeightError(
            f"{tensor.name} has values up to {float(largest):.4g} in magnitude, too large for "
            f"{kind}; take type BF16 or F32"
        )
    if kind == "F16":
        return values.astype("<f2").tobytes()
    assert kind in ENCODERS
    return encode(kind, values).tobytes()
