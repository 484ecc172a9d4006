"""Draw a trace of bursts, in the form of BurstGPT's tables: for whoever has no recorded one.

Requests come at the times of a Gamma process with a coefficient of variation of 2, so in bursts
with pauses between, and lengths are log-normal: many short prompts and a few long ones.

    python benchmarks/drawn_trace.py bursts.csv --requests 20000 --seed 1
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import numpy as np

_VARIATION = 2.0
"""Standard deviation over the mean of the times between requests; a Poisson process has 1."""
_PROMPTS, _ANSWERS = (300.0, 1.0), (150.0, 0.8)
"""Medians of lengths in tokens, and the standard deviations of their logarithms."""
_LONGEST = 4096


def drawn(requests: int, seed: int) -> list[tuple[float, int, int]]:
    """Seconds from the start, prompt tokens and answer tokens of each; one a second on average."""
    rng = np.random.default_rng(seed)
    shape = 1 / _VARIATION**2
    times = np.cumsum(rng.gamma(shape, 1 / shape, requests))
    prompts, answers = (
        np.clip(np.rint(rng.lognormal(np.log(median), spread, requests)), 1, _LONGEST).astype(int)
        for median, spread in (_PROMPTS, _ANSWERS)
    )
    return list(zip(times.round(3).tolist(), prompts.tolist(), answers.tolist(), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    with args.out.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(
            ["Timestamp", "Model", "Request tokens", "Response tokens", "Total tokens", "Log Type"]
        )
        for at_s, prompt, answer in drawn(args.requests, args.seed):
            table.writerow([at_s, "drawn", prompt, answer, prompt + answer, "API log"])


if __name__ == "__main__":
    main()
