"""``penstock quantize --compare``: several methods on one model, in one table and picture."""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.cli.bench_common import command_line
from penstock.cli.eval_common import read_text
from penstock.cli.parser import UsageError
from penstock.cli.quantize_options import settings_of
from penstock.cli.quantize_request import ComparisonRequest, MethodRequest
from penstock.cli.quantize_tasks import Tasks
from penstock.cli.quantize_tuning import tuning_of
from penstock.cli.quantize_work import tokenizer_of, work_of
from penstock.cli.status_line import StatusLine
from penstock.config import EngineConfig
from penstock.errors import ConfigError
from penstock.hardware import detect
from penstock.models.json_objects import read_json_object
from penstock.quantize.comparison import bits_per_weight, stored_bytes, table
from penstock.quantize.judged import Kept, Yardstick, digests_of, folder_of, record_digest
from penstock.quantize.record import RECORD, differing, record_of, source_files
from penstock.quantize.unfinished import require_resumable
from penstock.version import __version__
from penstock.written_file import write_bytes, write_json

if TYPE_CHECKING:
    from penstock.quantize.comparison import Variant
    from penstock.quantize.fine_tuning import FineTuning
    from penstock.quantize.run import Work
    from penstock.quantize.source import SourceModel

JSON: Final = "comparison.json"
PLOT: Final = "comparison.svg"
_BASE: Final = "as it is"
_WINDOW: Final = 512
_RUNS: Final = 3

Make = Callable[[MethodRequest, "Work", "FineTuning | None", Path], object]
"""Writes the checkpoint that is asked for to a folder."""


def compare(
    asked: ComparisonRequest, out: Path, source: SourceModel, restart: bool, make: Make
) -> int:
    """Make the variants that are not in the folder ``out`` yet, judge and time them. ``restart``:
    what is left of one that was interrupted is forgotten."""
    # Whatever can be refused is refused before hours are spent on the first.
    _check_folder(out, source.folder)
    works = {text: work_of(options, source) for text, options in asked.variants.items()}
    tunings = {text: tuning_of(options, source) for text, options in asked.variants.items()}
    for name, options in asked.variants.items():
        tuning = tunings[name]
        trained_on = None if tuning is None else tuning.text
        record = record_of(works[name], settings_of(options), trained_on)
        _check_variant(out / folder_of(name), record, restart)
    text = read_text(list(asked.texts))
    tasks = Tasks.open(asked, tokenizer_of(source))
    with _Judge(source, text, asked, tasks) as judge:
        _make_folder(out)
        kept = Kept.read(out / JSON, judge.yardstick)
        _tell_kept(kept, asked.variants)
        found = dict(kept.variants)
        if _BASE not in found:
            found[_BASE] = judge.variant(_BASE, source.folder, None, None)
            _write(out / JSON, _document(asked, judge, _ordered(found, asked)))
        for name, options in asked.variants.items():
            folder, seconds = out / folder_of(name), None
            if not folder.exists():
                for note in works[name].notes:
                    print(f"note: {name}: {note}", file=sys.stderr)
                started = time.perf_counter()
                make(options, works[name], tunings[name], folder)
                seconds = time.perf_counter() - started
            if name in found:
                continue
            bits = bits_per_weight(folder, works[name].layers.targets)
            found[name] = judge.variant(name, folder, bits, seconds)
            _write(out / JSON, _document(asked, judge, _ordered(found, asked)))
        variants = _ordered(found, asked)
        _write(out / JSON, _document(asked, judge, variants))
    rows = table(variants)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for name, *cells in rows:
        padded = (cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True))
        print(f"{name:<{widths[0]}}  {'  '.join(padded)}")
    print("\nbest: b, of bytes and divergence; s, of tokens/s and divergence")
    print(f"figures: {out / JSON}{_drawn(out / PLOT, variants)}")
    return 0


def _tell_kept(kept: Kept, asked: Collection[str]) -> None:
    """Say which figures stay, and why others do not."""
    if kept.dropped is not None:
        print(f"note: {JSON} {kept.dropped}; what has no figures is judged anew", file=sys.stderr)
    again = [name for name in kept.variants if name in asked]
    others = [name for name in kept.variants if name not in asked and name != _BASE]
    for names, where in ((again, ""), (others, ", which are not asked for and stay in the table")):
        if names:
            print(f"note: judged before, by the same{where}: {', '.join(names)}", file=sys.stderr)


def _ordered(found: Mapping[str, Variant], asked: ComparisonRequest) -> list[Variant]:
    """The model as it is, what is asked for as far as it is judged, and others."""
    names = dict.fromkeys([_BASE, *asked.variants, *found])
    return [found[name] for name in names if name in found]


def _write(path: Path, document: object) -> None:
    """Write a file that is there in full or as it was, whenever this ends."""
    partial = path.with_name(f".{path.name}.partial")
    write_json(partial, document)
    os.replace(partial, path)


def _check_folder(out: Path, model: Path) -> None:
    """Raise UsageError where ``out`` cannot become, or is not, a folder for variants."""
    if out.exists() and out.samefile(model):
        raise UsageError("argument --out: is the model's own folder; name another")
    if os.path.lexists(out) and not out.is_dir():
        raise UsageError(f"argument --out: {out} is no folder; name another")
    if not out.parent.is_dir():
        raise UsageError(f"argument --out: there is no folder {out.parent}; make it first")


def _make_folder(out: Path) -> None:
    try:
        out.mkdir(exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"--out {out} cannot be made: {error.strerror}; name a folder elsewhere"
        ) from error


def _check_variant(folder: Path, record: Mapping[str, object], restart: bool) -> None:
    """Raise ConfigError unless a folder that is there is what would be written to it, and what is
    left of a run that was interrupted can be gone on with."""
    if not os.path.lexists(folder):
        if not restart:
            require_resumable(folder, record)
        return
    path = folder / RECORD
    if not path.is_file():
        raise ConfigError(f"{folder} is none that this command has made; name another --out")
    changed = differing(read_json_object(path, ConfigError), record)
    if changed:
        raise ConfigError(
            f"{folder} was made with another {' and '.join(changed)}; remove it, or name another "
            "--out"
        )


class _Judge:
    """The model as it is, and the text by which its variants are compared with it."""

    def __init__(
        self, source: SourceModel, text: str, asked: ComparisonRequest, tasks: Tasks
    ) -> None:
        from penstock.evaluate.text_model import TextModel
        from penstock.evaluate.windows import cut

        self._status = StatusLine(sys.stderr)
        self.window = min(_WINDOW, source.spec.max_positions)
        self._tasks = tasks
        self._longest = max(self.window, tasks.longest(source.spec.max_positions))
        self._base = TextModel.open(_config(source.folder), self._longest)
        tokens, bos = self._base.encode(text)
        if len(tokens) < self.window:
            self.close()
            raise ConfigError(
                f"--text has {len(tokens)} tokens, fewer than a window of {self.window}; give a "
                "longer one"
            )
        self._windows = cut(tokens, self.window, "llama.cpp", bos)[: asked.max_windows]
        config, harness = self._base.engine_plan.config, tasks.harness
        self.yardstick = Yardstick(
            model=tuple(source_files(source.folder)),
            text=hashlib.sha256(text.encode()).hexdigest(),
            windows=len(self._windows),
            window=self.window,
            tasks=(*asked.named_tasks, *digests_of([*asked.tasks, *asked.task_folders])),
            max_questions=asked.max_questions,
            lm_eval=None if harness is None else harness.version,
            penstock=__version__,
            cpu=detect().cpu_model,
            backend=config.backend,
            threads=config.threads,
        )

    @property
    def windows(self) -> int:
        return len(self._windows)

    def variant(
        self, name: str, folder: Path, bits: float | None, seconds: float | None
    ) -> Variant:
        """Judge and time what is in ``folder``."""
        from penstock.evaluate.comparison import compare
        from penstock.evaluate.text_model import TextModel
        from penstock.quantize.comparison import Variant

        def tell(done: int, value: float) -> None:
            self._status.show(
                lambda: f"comparing: {name}, {done} of {self.windows} windows, {value:.4f} nats"
            )

        with TextModel.open(_config(folder), self._longest) as model:
            result = compare(model, self._base, self._windows, tell)
            tasks = self._tasks.of_files(name, model, self._status)
        tasks |= self._tasks.of_harness(name, _config(folder), self._status)
        return Variant(
            name=name,
            num_bytes=stored_bytes(folder),
            bits_per_weight=bits,
            perplexity=result.model_perplexity.perplexity,
            kl_mean=result.kl_mean,
            kl_p99=result.kl_p99,
            same_top=result.agreement,
            decode_tokens_per_s=_speed(folder),
            seconds=seconds,
            folder=None if bits is None else folder.name,
            tasks=tasks,
            record=None if bits is None else record_digest(folder),
        )

    def close(self) -> None:
        self._status.close()
        self._base.close()

    def __enter__(self) -> _Judge:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _config(folder: Path) -> EngineConfig:
    """The engine's defaults; weights are packed anew, since variants are not served from here."""
    return EngineConfig(model=str(folder), artifact=False)


def _speed(folder: Path) -> float:
    """Tokens a second of one stream."""
    from penstock.bench.latency import LatencyWorkload, run_latency
    from penstock.bench.session import Session

    with Session.open(_config(folder)) as session:
        workload = LatencyWorkload(repeats=_RUNS)
        result = run_latency(session.core, session.meter, session.vocab_size, workload)
    return result.decode_tokens_per_s_median


def _document(
    asked: ComparisonRequest, judge: _Judge, found: Sequence[Variant]
) -> dict[str, object]:
    calibration = [] if asked.calibration is None else [asked.calibration]
    files = [*asked.texts, *asked.tasks, *calibration]
    return {
        "comparison": "quantization",
        "command": command_line(),
        "penstock": __version__,
        "cpu": judge.yardstick.cpu,
        "texts": {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files},
        "lm_eval": judge.yardstick.lm_eval,
        "windows": judge.windows,
        "window": judge.window,
        "judged_by": judge.yardstick,
        "variants": [msgspec.to_builtins(each) for each in found],
    }


def _drawn(path: Path, found: Sequence[Variant]) -> str:
    """Draw the frontier, where the library that draws is installed; what to say of it."""
    from penstock.bench.plots.render import drawn
    from penstock.cli.quantize_plot import frontier_figure

    try:
        picture = drawn(frontier_figure(found), "svg", detect().cpu_model)
    except ConfigError as error:
        return f" (no picture: {error})"
    write_bytes(path, picture)
    return f", {path}"
