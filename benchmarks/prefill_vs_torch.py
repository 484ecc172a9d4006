"""Penstock's prefill beside torch's bf16 matrix products of the same shapes, in FLOP/s.

    pip install '.[test]'
    python benchmarks/prefill_vs_torch.py benchmarks/configs/llama-3.2-1b --load-format dummy

Penstock runs whole prefill steps of M prompt tokens: norms, rotation, cache writes, attention and
sampling included, but counted with the FLOPs of its matrix products alone. Torch runs those
products alone (``F.linear``, one weight for each of the model's matrices, so that caches help it
no more than they help us). Two processes with the same number of threads take turns, one idle
while the other runs; the best of the repeats counts, and the median is shown.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from turns import ask, spawn

from penstock.bench.machine import describe_machine, measure_speeds
from penstock.bench.meter import linear_flops, timed_step
from penstock.bench.session import Session
from penstock.bench.workload import fixed_lengths, random_requests
from penstock.config import EngineConfig
from penstock.engine.loader import plan_engine
from penstock.hardware import detect
from penstock.plan.ops import Linear, Rows


def main() -> int:
    args = parse()
    if args.worker == "penstock":
        return serve(PenstockWorker(config(args), args.tokens))
    if args.worker == "torch":
        return serve(TorchWorker(config(args), args.tokens))
    flops = args.tokens * linear_flops(plan_engine(config(args)).plan, Rows.TOKENS)
    before = measure_speeds(args.threads)
    rates: dict[str, list[float]] = {"penstock": [], "torch": []}
    workers = {name: spawn(name) for name in rates}
    for repeat in range(args.repeats + 1):  # the first is warm-up
        for name, worker in workers.items():
            seconds = float(ask(worker))
            if repeat:
                rates[name].append(flops / seconds)
    for worker in workers.values():
        worker.communicate()
    machine = describe_machine(before.best(measure_speeds(args.threads)), args.threads)
    print(f"{machine.cpu_model}, {args.threads} threads, {args.tokens} tokens")
    for name, values in rates.items():
        tokens = args.tokens * max(values) / flops
        print(
            f"{name:<9} best {max(values) / 1e9:8,.1f}  median {median(values) / 1e9:8,.1f} "
            f"GFLOP/s  {tokens:8,.1f} tokens/s"
        )
    ratio = max(rates["penstock"]) / max(rates["torch"])
    print(f"penstock's whole step runs at {ratio:.1%} of torch's products alone")
    if machine.bf16_flops:
        share = max(rates["penstock"]) / machine.bf16_flops
        print(f"machine   bf16 peak {machine.bf16_flops / 1e9:,.1f} GFLOP/s, penstock {share:.1%}")
    if args.json:
        args.json.write_text(
            json.dumps(
                {"flops": rates, "ratio_of_best": ratio, "bf16_flops": machine.bf16_flops}, indent=2
            )
        )
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--load-format", default="auto", choices=("auto", "dummy"))
    parser.add_argument("--tokens", type=int, default=512, help="M, the rows of each product")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=detect().compute_threads)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--worker", choices=("penstock", "torch"), help=argparse.SUPPRESS)
    return parser.parse_args()


def config(args: argparse.Namespace) -> EngineConfig:
    return EngineConfig(
        model=args.model,
        load_format=args.load_format,
        dtype="bfloat16",
        threads=args.threads,
        max_model_len=args.tokens + 32,
        max_num_batched_tokens=args.tokens,
        max_num_seqs=1,
    )


@dataclass
class PenstockWorker:
    """One prefill step of fresh random tokens."""

    config: EngineConfig
    tokens: int
    runs: int = 0

    def __post_init__(self) -> None:
        self.session = Session.open(self.config)

    def __call__(self) -> float:
        lengths = fixed_lengths(1, self.tokens, 1)
        (request,) = random_requests(lengths, self.session.vocab_size, self.runs)
        self.runs += 1
        self.session.core.add_request(request)
        seconds = 0.0
        while self.session.core.has_work:
            seconds += timed_step(self.session.core, self.session.meter)[1].seconds
        return seconds


@dataclass
class TorchWorker:
    """All products of a prefill step, one after the other."""

    config: EngineConfig
    tokens: int

    def __post_init__(self) -> None:
        import torch

        threads = self.config.threads
        torch.set_num_threads(threads if isinstance(threads, int) else 1)
        plan = plan_engine(self.config).plan
        self.products = []
        for op in plan.ops:
            if isinstance(op, Linear) and plan.buffers[op.x].rows == Rows.TOKENS:
                n = sum(part.n for part in op.parts)
                shapes = (self.tokens, op.k), (n, op.k)
                self.products.append(tuple(torch.randn(s, dtype=torch.bfloat16) for s in shapes))

    def __call__(self) -> float:
        from torch import inference_mode
        from torch.nn.functional import linear

        with inference_mode():
            start = time.perf_counter()
            for x, weight in self.products:
                linear(x, weight)
            return time.perf_counter() - start


def serve(work: PenstockWorker | TorchWorker) -> int:
    for _ in sys.stdin:
        print(work(), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
