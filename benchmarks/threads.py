"""How prefill and decode scale with threads, and what a busy neighbour costs.

    python benchmarks/threads.py benchmarks/configs/llama-3.2-1b --load-format dummy

One process for each number of threads loads the model; they take turns, all idle but one, so that
what else the machine does falls on all alike. Each turn reads one prompt and decodes from it, by
itself and then beside a process that does nothing but keep the last thread's core busy, as
``taskset -c CPU sh -c 'while :; do :; done'`` would. Rates are the best of the repeats, which is
what the machine can do; the neighbour's cost is the median over turns of the ratio within a turn.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from turns import ask, spawn

from penstock.bench.latency import LatencyWorkload, run_latency
from penstock.bench.session import Session
from penstock.config import EngineConfig
from penstock.hardware import detect


@dataclass(frozen=True)
class Rates:
    """Tokens a second of one turn."""

    prefill: float
    decode: float

    def over(self, other: Rates) -> Rates:
        return Rates(self.prefill / other.prefill, self.decode / other.decode)


@dataclass(frozen=True)
class Row:
    """One number of threads over all turns."""

    threads: int
    best: Rates
    scaling: Rates  # over the first row
    slower: Rates  # times, beside a neighbour


def main() -> int:
    args = parse()
    if args.worker:
        return serve(args)
    hardware = detect()
    print(
        f"{hardware.cpu_model}, {hardware.physical_cores} cores; load {os.getloadavg()[0]:.1f} "
        f"before; prompts of {args.prompt}, {args.output} tokens decoded, {args.repeats} turns"
    )
    alone, beside = measure(args, hardware.placement)
    rows = []
    first = best_of(alone[args.threads[0]])
    for count in args.threads:
        ratios = [a.over(b) for a, b in zip(alone[count], beside[count], strict=True)]
        best = best_of(alone[count])
        rows.append(Row(count, best, best.over(first), median_of(ratios)))
    print("threads  prefill tok/s  scaling  decode tok/s  scaling   beside a busy process, slower")
    for row in rows:
        print(
            f"{row.threads:7d}  {row.best.prefill:13,.1f}  {row.scaling.prefill:6.2f}x  "
            f"{row.best.decode:12,.1f}  {row.scaling.decode:6.2f}x   "
            f"prefill {row.slower.prefill:.2f}x, decode {row.slower.decode:.2f}x"
        )
    if args.json:
        args.json.write_text(json.dumps([_plain(row) for row in rows], indent=2) + "\n")
    return 0


def measure(
    args: argparse.Namespace, cpus: tuple[int, ...]
) -> tuple[dict[int, list[Rates]], dict[int, list[Rates]]]:
    alone: dict[int, list[Rates]] = {count: [] for count in args.threads}
    beside: dict[int, list[Rates]] = {count: [] for count in args.threads}
    workers = {count: spawn(str(count)) for count in args.threads}
    for repeat in range(args.repeats + 1):  # the first is warm-up
        for count, worker in workers.items():
            quiet = turn(worker)
            with neighbour(cpus[min(count, len(cpus)) - 1]):
                noisy = turn(worker)
            if repeat:
                alone[count].append(quiet)
                beside[count].append(noisy)
    for worker in workers.values():
        assert worker.stdin is not None
        worker.stdin.close()
        worker.wait()
    return alone, beside


def best_of(rates: list[Rates]) -> Rates:
    return Rates(max(r.prefill for r in rates), max(r.decode for r in rates))


def median_of(rates: list[Rates]) -> Rates:
    return Rates(median(r.prefill for r in rates), median(r.decode for r in rates))


def parse() -> argparse.Namespace:
    most = detect().compute_threads
    counts = sorted({*(1 << i for i in range(most.bit_length()) if 1 << i < most), most})
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--load-format", default="auto", choices=("auto", "dummy"))
    parser.add_argument("--quantization", default="none", choices=("none", "int8", "int4"))
    parser.add_argument("--threads", type=int, nargs="+", default=counts, metavar="N")
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--output", type=int, default=24)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


@contextlib.contextmanager
def neighbour(cpu: int) -> Iterator[None]:
    """A process that keeps ``cpu`` busy, at the priority of ours."""
    script = f"import os; os.sched_setaffinity(0, {{{cpu}}}); print(flush=True)\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield
        finally:
            process.kill()


def serve(args: argparse.Namespace) -> int:
    config = EngineConfig(
        model=args.model,
        load_format=args.load_format,
        quantization=args.quantization,
        threads=args.worker,
        max_model_len=args.prompt + args.output + 32,
        max_num_batched_tokens=args.prompt,
        max_num_seqs=1,
        enable_prefix_caching=False,
    )
    with Session.open(config) as session:
        for turn, _ in enumerate(sys.stdin):
            work = LatencyWorkload(
                input_len=args.prompt, output_len=args.output, repeats=1, warmup=0, seed=turn
            )
            result = run_latency(session.core, session.meter, session.vocab_size, work)
            print(result.prefill_tokens_per_s, result.decode_tokens_per_s, flush=True)
    return 0


def turn(worker: subprocess.Popen[str]) -> Rates:
    """Let the worker take one turn."""
    prefill, decode = ask(worker).split()
    return Rates(float(prefill), float(decode))


def _plain(row: Row) -> dict[str, object]:
    return {
        "threads": row.threads,
        "prefill_tokens_per_s": row.best.prefill,
        "decode_tokens_per_s": row.best.decode,
        "prefill_scaling": row.scaling.prefill,
        "decode_scaling": row.scaling.decode,
        "prefill_times_slower_beside": row.slower.prefill,
        "decode_times_slower_beside": row.slower.decode,
    }


if __name__ == "__main__":
    sys.exit(main())
