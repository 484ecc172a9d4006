"""Load generators beside each other: ``penstock bench serve``, AIPerf and GuideLLM in turn.

All ask one server for the same: so many streams of completions at once, of prompts and answers of
the same lengths. In every round another one begins. The report has the median of the rounds, and
each other's beside that of ``penstock bench serve``.

    python benchmarks/clients/generators.py --server mock
    python benchmarks/clients/generators.py --server shape --cores 0:1 --json generators.json

``mock`` is ``benchmarks/server/mock_server.py``, whose times are known: the first token after
200 ms, each further one after 30. ``shape`` is ``penstock serve`` with Qwen3-0.6B's layers, random
weights and the demo model's vocabulary.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from client import Figures, Job
from environments import Environment
from fresh_server import Served, serving
from load import OUTPUT_TOKENS, PROMPT_TOKENS, AiPerf, GuideLlm
from machine import described_machine

from penstock import demo_model_path
from penstock.written_file import write_json

HERE = Path(__file__).resolve().parent
SHAPE: Final = HERE.parent / "configs" / "qwen3-0.6b" / "config.json"
MOCK_TTFT_MS, MOCK_ITL_MS = 200, 30
COLUMNS: Final = ("TTFT ms", "ITL ms", "e2e ms", "output tokens/s")


class Generator(Protocol):
    """A program that loads a server and tells what it measured."""

    @property
    def name(self) -> str: ...

    @property
    def requirements(self) -> tuple[str, ...]: ...

    def level(self, job: Job, streams: int, requests: int, folder: Path) -> Figures: ...


class BenchServe:
    """``penstock bench serve``, of the environment that runs this."""

    name = "penstock"
    requirements = ()

    def level(self, job: Job, streams: int, requests: int, folder: Path) -> Figures:
        out = folder / "run.json"
        job.call(
            *("penstock", "bench", "serve", job.server.url, "--model", job.model),
            *("--endpoint", "completions", "--tokenizer", str(job.tokenizer), "--scrape", "0"),
            *("--input-len", str(PROMPT_TOKENS), "--output-len", str(OUTPUT_TOKENS)),
            *("--concurrency", str(streams), "--num-prompts", str(requests), "--json", str(out)),
        )
        run = json.loads(out.read_text())["runs"][0]["whole"]

        def mean(name: str) -> float:
            value: float = run["distributions"][name]["summary"]["mean"]
            return value

        return {
            "requests": run["completed"],
            "TTFT ms": 1e3 * mean("ttft"),
            "ITL ms": 1e3 * mean("tpot"),
            "e2e ms": 1e3 * mean("e2el"),
            "output tokens/s": run["output_tokens_per_s"],
        }


GENERATORS: Final[tuple[Generator, ...]] = (BenchServe(), AiPerf(), GuideLlm())


@dataclass(frozen=True)
class Cores:
    """CPUs of the server and of the clients; empty where the system chooses."""

    server: str
    clients: str

    @classmethod
    def parse(cls, text: str) -> Cores:
        server, _, clients = text.partition(":")
        return cls(server, clients)


def main() -> int:
    args = _arguments()
    args.work.mkdir(parents=True, exist_ok=True)
    if args.cores.clients:
        os.sched_setaffinity(0, _cpus(args.cores.clients))
    rounds: list[dict[str, Figures]] = []
    with tempfile.TemporaryDirectory(prefix="generators-", dir=args.work) as name:
        folder = Path(name)
        with _served(args, folder) as (server, model):
            for number in range(args.rounds):
                order = [*GENERATORS[number % 3 :], *GENERATORS[: number % 3]]
                found = {}
                for each in order:
                    out = folder / f"{each.name}-{number}"
                    out.mkdir()
                    job = _job(each, args, server, model, out)
                    found[each.name] = each.level(job, args.streams, args.requests, out)
                    print(f"round {number + 1}, {each.name}: {_told(found[each.name])}", flush=True)
                rounds.append(found)
    print()
    print("\n".join(_table(rounds)))
    if args.json is not None:
        write_json(
            args.json, {"machine": described_machine(), "server": args.server, "rounds": rounds}
        )
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--server", choices=("mock", "shape"), default="mock")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--streams", type=int, default=8, help="open at once (default: 8)")
    parser.add_argument("--requests", type=int, default=64, help="of each run (default: 64)")
    parser.add_argument(
        "--cores",
        type=Cores.parse,
        default=Cores("", ""),
        metavar="SERVER:CLIENTS",
        help="CPUs of each, such as 0:1",
    )
    parser.add_argument("--timeout", type=float, default=900, help="seconds for one command")
    parser.add_argument(
        "--work",
        type=Path,
        default=Path(tempfile.gettempdir()) / "penstock-clients",
        help="for environments, which are kept (default: %(default)s)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser.parse_args()


def _job(each: Generator, args: argparse.Namespace, server: Served, model: str, out: Path) -> Job:
    environment = Environment(Path(sys.prefix))
    if each.requirements:
        log = args.work / f"{each.name}-setup.log"
        place = args.work / "env" / each.name
        environment = Environment.create(place, each.requirements, log)
    return Job(environment, server, model, demo_model_path(), out, True, args.timeout)


@contextmanager
def _served(args: argparse.Namespace, folder: Path) -> Iterator[tuple[Served, str]]:
    """The server, and the name of its model."""
    if args.server == "mock":
        with _mock(args.cores.server) as served:
            yield served, "mock"
        return
    model = folder / "qwen3-0.6b-small-vocabulary"
    _write_shape(model)
    words = [str(model), "--load-format", "dummy", "--served-model-name", model.name]
    with serving(
        folder / "server.log", *words, "--no-access-log", cpus=args.cores.server
    ) as served:
        yield served, model.name


@contextmanager
def _mock(cpus: str) -> Iterator[Served]:
    command = [
        *(["taskset", "-c", cpus] if cpus else []),
        *(sys.executable, str(HERE.parent / "server" / "mock_server.py")),
        *("--ttft-ms", str(MOCK_TTFT_MS), "--itl-ms", str(MOCK_ITL_MS)),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield Served(f"http://127.0.0.1:{int(process.stdout.readline())}")
        finally:
            process.kill()


def _write_shape(folder: Path) -> None:
    """A checkpoint's folder without weights: the published layers, the demo model's tokenizer."""
    demo = demo_model_path()
    folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(demo / name, folder / name)
    config = json.loads(SHAPE.read_text())
    own = json.loads((demo / "config.json").read_text())
    for name in ("vocab_size", "bos_token_id", "eos_token_id"):
        config[name] = own[name]
    (folder / "config.json").write_text(json.dumps(config))


def _cpus(text: str) -> set[int]:
    return {int(each) for each in text.split(",")}


def _told(figures: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {figures[name]:.2f}" for name in COLUMNS)


def _table(rounds: Sequence[Mapping[str, Figures]]) -> Iterator[str]:
    """The median of the rounds, and its ratio to ours of the same rounds, with their range."""
    yield "| | " + " | ".join(COLUMNS) + " |"
    yield "|---|" + "---|" * len(COLUMNS)
    ours = BenchServe.name
    for name in rounds[0]:
        cells = []
        for column in COLUMNS:
            values = [float(each[name][column]) for each in rounds]
            cell = f"{statistics.median(values):.1f}"
            if name != ours:
                ratios = [
                    value / float(each[ours][column])
                    for value, each in zip(values, rounds, strict=True)
                ]
                middle = statistics.median(ratios)
                cell += f", {middle:.3f} ({min(ratios):.3f} to {max(ratios):.3f})"
            cells.append(cell)
        yield f"| {name} | {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main())
