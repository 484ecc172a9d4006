"""One model into one GGUF file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.convert.checkpoint_content import CheckpointContent
from penstock.convert.content import Content, Part, SourceTensor, Values
from penstock.convert.gguf_content import GgufContent
from penstock.convert.importance import Importance, require_used
from penstock.convert.new_file import NewFile, new_file, require_absent
from penstock.convert.rounding import Rounding
from penstock.convert.type_choice import ModelTraits, TypeChoice
from penstock.convert.types import FileType
from penstock.errors import ConfigError
from penstock.gguf.names import is_gguf
from penstock.gguf.types import type_named
from penstock.gguf.writing import FileLayout, NewTensor, lay_out, pair
from penstock.quant.encode import MatrixEncoder, encode
from penstock.quant.formats import GGUF_FORMATS

_QUANTIZATION_VERSION: Final = 2
_TASK_VALUES: Final = 1 << 20
"""Values that a thread rounds and writes at a time."""

OnBytes = Callable[[int, int], None]
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
    importance: Importance | None = None,
    encoder: MatrixEncoder = encode,
    threads: int = 1,
    progress: OnBytes = lambda done, total: None,
) -> Converted:
    """Write the model in a folder or GGUF file to ``target``.

    Memory holds a few matrices at a time. ``name`` is what the file calls the model; without it
    what a GGUF file called it, else ``default_name``. With ``replace`` a file that is there is
    replaced, at the end. ``importance`` says which columns' errors count most. Raises ConfigError
    where ``target`` cannot be written to, and for an importance matrix that is not the model's;
    ModelError, WeightError or TokenizerError for a model that cannot be written; WriteError where
    the system refuses.
    """
    require_absent(target, replace)
    if importance is not None:
        require_used(importance, wanted)
    content: Content
    if is_gguf(model):
        if wanted.keeps:
            raise ConfigError(
                f"{model} is a GGUF file, whose matrices are in GGUF's types already; type "
                f"{wanted.name} is of quantized checkpoints"
            )
        content = GgufContent(model, name)
    else:
        own_name = name or default_name or model.resolve().name
        content = made = CheckpointContent(model, own_name, wanted.keeps)
        if wanted.keeps:
            wanted = made.kept_type
    traits = ModelTraits.of(content.metadata, [each.name for each in content.tensors])
    choice = TypeChoice(wanted, traits, weighted=importance is not None)
    tensors = [
        NewTensor(each.name, type_named(choice.of(each.name, each.shape, each.stored)), each.shape)
        for each in content.tensors
    ]
    pairs = {**content.pairs(), "general.file_type": pair("general.file_type", wanted.number)}
    if any(each.type.name in GGUF_FORMATS for each in tensors):
        key = "general.quantization_version"
        pairs[key] = pair(key, _QUANTIZATION_VERSION)
    again = content.rounded_again({each.name: each.type.name for each in tensors})
    rounding = Rounding(encoder)
    if importance is not None:
        types = {each.name: (each.type.name, each.shape) for each in tensors}
        rounding = Rounding(encoder, importance.weights(types, traits.tied))
        pairs |= {key: pair(key, value) for key, value in importance.values.items()}
    layout = lay_out(list(pairs.values()), tensors)
    with new_file(target, layout.size, replace) as file:
        writer = _Writer(content, tensors, layout, file, rounding, threads, progress)
        writer.write()
        file.write(layout.head, 0)
    counts = Counter(each.type.name for each in tensors)
    notes = content.notes if again is None else (*content.notes, again)
    return Converted(target, layout.size, dict(counts.most_common()), writer.taken, notes)


class _Writer:
    """Rounds and writes tensors, on threads."""

    def __init__(
        self,
        content: Content,
        tensors: list[NewTensor],
        layout: FileLayout,
        file: NewFile,
        rounding: Rounding,
        threads: int,
        progress: OnBytes,
    ) -> None:
        self._content, self._tensors, self._layout = content, tensors, layout
        self._file, self._rounding = file, rounding
        self._threads, self._progress = threads, progress
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
                yield from self._rounding_of(tensor, part, start)

    def _rounding_of(
        self, tensor: NewTensor, part: Part, start: int
    ) -> Iterator[Callable[[], int]]:
        """Some rows at a time, all of one matrix where the tensor is a stack of several."""
        rows, columns = part.values.shape
        row_bytes = tensor.type.nbytes((columns,))
        some = max(1, _TASK_VALUES // max(columns, 1))
        each = tensor.shape[-2] if len(tensor.shape) > 2 else rows + part.first
        first = 0
        while first < rows:
            matrix, row = divmod(part.first + first, each)
            end = min(first + some, rows, first + each - row)
            offset = start + (part.first + first) * row_bytes
            yield self._task(tensor, part.values[first:end], matrix, offset)
            first = end

    def _copying(self, source: SourceTensor, start: int) -> Callable[[], int]:
        def task() -> int:
            data = self._content.stored_bytes(source)
            self._file.write(data.data, start)
            return data.nbytes

        return task

    def _task(
        self, tensor: NewTensor, values: Values, matrix: int, offset: int
    ) -> Callable[[], int]:
        def task() -> int:
            data = self._rounding.rounded(tensor, values, matrix)
            self._file.write(data, offset)
            return len(data)

        return task
