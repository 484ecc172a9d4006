"""Penstock beside other CPU engines: install them, make one checkpoint, measure, report.

    python benchmarks/cpu/run.py setup
    python benchmarks/cpu/run.py checkpoints
    python benchmarks/cpu/run.py run
    python benchmarks/cpu/run.py report benchmarks/cpu/results/NAME.json
    python benchmarks/cpu/run.py picture benchmarks/cpu/results/NAME.json --out NAME.svg

README.md beside this file says what is compared and how.
"""

from __future__ import annotations

import argparse
import itertools
import os
import signal
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from comparison.artifacts import Shape
from comparison.cap import CAPS, Cap
from comparison.cases import Case, Metric, standard_cases
from comparison.contender import Limits
from comparison.environments import Environment
from comparison.line_up import line_up, one_per_core
from comparison.options import PROFILES, parse
from comparison.peers import PEERS
from comparison.plots import draw
from comparison.quality import score
from comparison.report import render
from comparison.results import CapRecord, Comparison, case_record, read, write
from comparison.rounds import run_rounds
from comparison.text import WINDOW, Text
from penstock.backends.cpu import native
from penstock.bench.machine import describe_machine, measure_speeds
from penstock.bench.redact import redacted_command
from penstock.config import EngineConfig
from penstock.engine.loader import plan_engine
from penstock.errors import ConfigError, PenstockError
from penstock.hardware import detect
from penstock.models.spec import ModelSpec, attention_of
from penstock.written_file import check_writable

HERE = Path(__file__).resolve().parent
CONFIGS = HERE.parent / "configs"
RESULTS = HERE / "results"


def main() -> int:
    args = parse(__doc__)
    # A request to end must reach the code that ends the workers: they run in sessions of their own,
    # and those that are paused would stay for ever.
    for ending in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ending, lambda number, frame: sys.exit(128 + number))
    if args.command == "setup":
        return setup(args)
    if args.command == "checkpoints":
        return checkpoints(args)
    if args.command == "run":
        return compare(args)
    if args.command == "picture":
        return picture(args.results, args.precision, args.metrics, args.out)
    return report(args.results, args.out)


def setup(args: argparse.Namespace) -> int:
    for name in args.engines:
        made = Environment(PEERS[name], args.work.resolve()).install(cap_of(args))
        print(f"{name}: {made.error or ', '.join(f'{k} {v}' for k, v in made.versions.items())}")
    return 0


def shape_of(args: argparse.Namespace) -> Shape:
    file: Path | None = getattr(args, "gguf", None)
    if file is not None:
        return Shape(file.stem, file.parent, args.work.resolve(), file.resolve())
    for folder in (CONFIGS / args.shape, Path(args.shape)):
        if (folder / "config.json").exists():
            return Shape(folder.name, folder, args.work.resolve())
    known = ", ".join(sorted(path.name for path in CONFIGS.iterdir() if path.is_dir()))
    raise SystemExit(f"there is no shape {args.shape!r}; there are {known}, or name a folder")


def checkpoints(args: argparse.Namespace) -> int:
    shape = shape_of(args)
    shape.checkpoint()
    for name in args.engines:
        error = shape.export(PEERS[name], args.precisions)
        print(f"{name}: {error or 'ready'}")
    return 0


def cap_of(args: argparse.Namespace) -> Cap | None:
    return None if args.isa is None else CAPS[args.isa]


def hold(cap: Cap) -> None:
    """Hold this process to ``cap``, too: it measures what the machine can do at most."""
    os.environ.update(cap.variables)
    try:
        native.load()
    except PenstockError as error:
        raise SystemExit(f"--isa {cap.name}: {error}") from None


def compare(args: argparse.Namespace) -> int:
    cap = cap_of(args)
    if cap is not None:
        hold(cap)
    shape, hardware, date = shape_of(args), detect(), datetime.now(UTC).strftime("%Y-%m-%d")
    held = "" if cap is None else f"-{cap.name}"
    out = results_file(args.out, f"{date}-{shape.name}{held}.json")
    spec = plan_engine(EngineConfig(model=str(shape.file or shape.config_folder))).spec
    ids, cases = words(shape, spec), chosen_cases(args)
    text = text_of(args, shape)
    threads = args.threads or hardware.compute_threads
    longest = [case.longest for case in cases] + [WINDOW + 1] * (args.text is not None)
    limits = Limits(
        processors=one_per_core(threads, hardware),
        max_sequences=64,
        max_length=-(-max(longest) // 32) * 32,
        kv_bytes=kv_bytes(spec, cases),
        clients=max((case.clients or 1 for case in cases), default=1),
        kv_bits=int(args.kv_cache),
        run_seconds=args.timeout,
        cap=cap,
    )
    before = measure_speeds(threads)
    comparison = Comparison(
        date=date,
        command=redacted_command("benchmarks/cpu/run.py", sys.argv[1:]),
        shape=shape.name,
        machine=describe_machine(before, threads, hardware),
        cases=[case_record(case) for case in cases],
        cap=None if cap is None else CapRecord(isa=cap.name, title=cap.title),
    )
    contenders = line_up(args.engines, args.precisions, shape, limits, cases, comparison)
    deadline = None if args.minutes is None else time.monotonic() + 60 * args.minutes
    code = 0
    try:
        if text is not None:
            comparison.text = str(text)
            score(contenders, text, comparison)
        run_rounds(
            contenders,
            cases,
            comparison,
            rounds=args.rounds,
            ids=ids,
            seed=args.seed,
            deadline=deadline,
            say=lambda text: print(text, flush=True),
            save=lambda found: write(found, out),
        )
    except SystemExit as ended:  # by a signal: what was measured is reported
        comparison.stopped, code = True, int(ended.code or 0)
    else:
        speeds = before.best(measure_speeds(threads))
        comparison.machine = describe_machine(speeds, threads, hardware)
    measured = bool(comparison.samples or comparison.qualities)
    if comparison.stopped and not measured:
        raise SystemExit(code)
    write(comparison, out)
    report(out, None)
    if not measured:
        raise SystemExit("nothing was measured; the report says why")
    return code


def results_file(out: Path | None, name: str) -> Path:
    """Return where results go: the file ``out``, or ``name`` in that folder or with all results,
    with a number where such results are there already.

    Raises ConfigError where they could not be written, or the report beside them would take their
    place.
    """
    if out is None or out.is_dir():
        path = free_name((out or RESULTS) / name)
    elif out.suffix != ".json":
        raise ConfigError(f"--out {out} is no folder, and no file whose name ends in .json")
    else:
        path = out
    check_writable("--out", path)
    return path


def free_name(path: Path) -> Path:
    """Return ``path``, or the first of ``NAME-2``, ``NAME-3`` and so on that is not there."""
    names = itertools.chain(
        [path.name], (f"{path.stem}-{i}{path.suffix}" for i in itertools.count(2))
    )
    return next(each for name in names if not (each := path.with_name(name)).exists())


def words(shape: Shape, spec: ModelSpec) -> range:
    """Return the ids of tokens that are words, of which prompts are drawn; a shape's checkpoint is
    made if it is not there."""
    if shape.file is not None:
        edge = min(1000, spec.vocab_size // 4)
        return range(edge, spec.vocab_size - edge)  # special ones stand at either end
    vocabulary = shape.checkpoint().vocabulary
    return range(vocabulary.first_word, vocabulary.last_word)


def kv_bytes(spec: ModelSpec, cases: list[Case]) -> int:
    """Return the KV cache's bytes for the case with the most tokens, in bfloat16."""
    attention = [a for layer in spec.layers if (a := attention_of(layer)) is not None]
    per_token = sum(2 * 2 * a.num_kv_heads * a.head_dim for a in attention)
    return per_token * max(sum(p + o for p, o in case.lengths) for case in cases)


def text_of(args: argparse.Namespace, shape: Shape) -> Text | None:
    """Return the text that every engine reads; None without ``--text``."""
    if args.text is None or shape.file is None:
        return None
    try:
        return Text.read(args.text, shape.file, args.windows)
    except (OSError, PenstockError) as error:
        raise SystemExit(f"--text {args.text}: {error}") from None


def chosen_cases(args: argparse.Namespace) -> list[Case]:
    cases = standard_cases(*PROFILES[args.profile])
    if args.cases is None:
        return [case for case in cases if not case.named_only]
    unknown = set(args.cases) - {case.name for case in cases}
    if unknown or not args.cases:
        known = ", ".join(case.name for case in cases)
        raise SystemExit(f"there is no case {', '.join(sorted(unknown))}; there are {known}")
    return [case for case in cases if case.name in args.cases]


def report(results: Path, out: Path | None) -> int:
    comparison = read(results)
    target = report_file(results, out)
    plots: dict[str, str] = {}
    for precision in comparison.precisions:
        picture = target.with_name(f"{target.stem}-{precision}.svg")
        if draw(comparison, precision, picture):
            plots[precision] = picture.name
    target.write_text(render(comparison, plots), encoding="utf-8")
    print(f"{results}\n{target}")
    return 0


def report_file(results: Path, out: Path | None) -> Path:
    """Return the file of a report: ``out``, or one named as ``results``, in that folder or beside
    them.

    Raises ConfigError where it could not be written, or would take the place of ``results``.
    """
    if out is None or out.is_dir():
        out = (out or results.parent) / f"{results.stem}.md"
    check_apart(out, results)
    return out


def check_apart(out: Path, results: Path) -> None:
    """Raise ConfigError where ``out`` could not be written, or is the file of ``results``."""
    if out.resolve() == results.resolve():
        raise ConfigError(f"--out {out} would take the place of the results; name another file")
    check_writable("--out", out)


def picture(results: Path, precision: str, metrics: Sequence[Metric], out: Path) -> int:
    comparison = read(results)
    check_apart(out, results)
    if not draw(comparison, precision, out, metrics):
        there = ", ".join(comparison.precisions) or "none"
        raise SystemExit(
            f"{results} has none of these figures in {precision!r}; its precisions: {there}"
        )
    print(out)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (PenstockError, OSError) as error:
        sys.exit(str(error))
