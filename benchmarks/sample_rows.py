"""What choosing one token costs, in microseconds of processor time a row.

    python benchmarks/sample_rows.py [--vocab 4096 32768 131072]

By sampling options and vocabulary: NumPy's definition, and the native kernels on one thread. Half
of the rows are as language models make them (the n-th likeliest token about n**-1.2 times as
likely as the first), half are flat (normal logits), which is the worst that filters can meet. Both
choose the same tokens, which is checked. Best of several repeats.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from time import thread_time_ns
from typing import Any

import numpy as np

from penstock.backends.cpu.native import load
from penstock.backends.cpu.sampler import NativeSampler
from penstock.interface.sampler import NewSequence, Sampled, Sampler
from penstock.interface.step import StepResult
from penstock.sampling.params import SamplingParams
from penstock.sampling.reference import NumpySampler

ROWS = 16
KINDS = {
    "greedy": SamplingParams(temperature=0.0),
    "plain": SamplingParams(),
    "top_p 0.95": SamplingParams(temperature=0.8, top_p=0.95),
    "top_k 50, top_p 0.95": SamplingParams(temperature=0.8, top_k=50, top_p=0.95),
    "min_p 0.05": SamplingParams(min_p=0.05),
    "penalties": SamplingParams(repetition_penalty=1.1, frequency_penalty=0.2),
    "greedy, 5 logprobs": SamplingParams(temperature=0.0, logprobs=5),
}


def logits_of(vocab: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((ROWS, vocab), np.float32)
    for row in logits[::2]:
        row *= np.float32(0.5)
        row -= np.float32(1.2) * np.log(rng.permutation(vocab) + 1).astype(np.float32)
    return logits


def native_sampler(vocab: int) -> NativeSampler:
    module = load()
    executor = module.Executor(
        threads=1,
        cpus=[],
        crowded=False,
        num_blocks=1,
        max_tokens=1,
        max_logits=1,
        max_sequences=1,
        max_positions=1,
        vocabulary=vocab,
        arena_bytes=64,
        kv_elem="float32",
        kv_layers=[],
    )
    return NativeSampler(module, executor, vocab)


def measure(
    sampler: Sampler[Any], params: SamplingParams, logits: np.ndarray, repeats: int
) -> tuple[float, Sampled]:
    vocab = logits.shape[1]
    states = [sampler.state(NewSequence(params, i, range(100), vocab)) for i in range(ROWS)]
    for state in states:
        for token in range(200, min(300, vocab)):
            state.append(token)
    result = StepResult(logits, logits.argmax(axis=1).astype(np.int32))
    return best(lambda: sampler.sample(result, list(range(ROWS)), states), repeats)


def best(call: Callable[[], Sampled], repeats: int) -> tuple[float, Sampled]:
    fastest = float("inf")
    for _ in range(repeats):
        start = thread_time_ns()
        sampled = call()
        fastest = min(fastest, (thread_time_ns() - start) / ROWS / 1e3)
    return fastest, sampled


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vocab", type=int, nargs="+", default=[4096, 32768, 131072])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    results: dict[str, dict[str, list[float]]] = {}
    print(f"{'us a row: NumPy, native':<24}" + "".join(f"{v:>20,}" for v in args.vocab))
    for name, params in KINDS.items():
        cells = results[name] = {}
        for vocab in args.vocab:
            logits = logits_of(vocab)
            slow, expected = measure(NumpySampler(), params, logits, args.repeats)
            fast, found = measure(native_sampler(vocab), params, logits, args.repeats)
            assert found == expected, f"{name}: the samplers disagree"
            cells[f"{vocab}"] = [slow, fast]
        row = "".join(f"{slow:>11.1f}{fast:>9.1f}" for slow, fast in cells.values())
        print(f"{name:<24}{row}", flush=True)
    if args.json:
        args.json.write_text(json.dumps(results, indent=2))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
