"""Requests of a recorded trace: its lengths, its gaps, and all options that change an answer."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from penstock.bench.replay import scaled
from penstock.bench.traces import Lengths
from penstock.workload.csv_trace import CsvTrace, TimedRequest

LONGEST_GAP_S = 10.0
"""Most seconds between arrivals: a trace has pauses in which nothing would be strained."""


@dataclass(frozen=True)
class Trace:
    bodies: list[dict[str, Any]]
    """Different requests, without ``stream``."""
    gaps: list[float]
    """Seconds between arrivals."""

    @classmethod
    def read(cls, path: Path, count: int, model: str, context: int, vocabulary: int) -> Trace:
        """``count`` requests spread over the trace, shrunk by one factor to fit ``context``.

        Prompts are random tokens. Raises ConfigError for a file that is no trace, and OSError.
        """
        requests = CsvTrace.read(path).requests
        lengths = scaled([Lengths(each.prompt, each.output) for each in requests], context)
        generator = random.Random(0)
        step = max(1, len(lengths) // count)
        bodies = []
        for i, length in enumerate(lengths[::step][:count]):
            prompt = [generator.randrange(vocabulary) for _ in range(length.prompt)]
            bodies.append(
                {"model": model, "prompt": prompt, "max_tokens": length.output, **_options(i)}
            )
        return cls(bodies, list(_gaps(requests)))


def _options(i: int) -> dict[str, Any]:
    """Greedy and drawn, one sequence and two, with and without log-probabilities and an end."""
    return (
        {"temperature": 0, "ignore_eos": True},
        {"temperature": 0.9, "seed": i, "top_p": 0.95},
        {"temperature": 0, "logprobs": 2},
        {"temperature": 1.0, "seed": i, "n": 2, "top_k": 50},
        {"temperature": 0, "stop": ["\n\n", "()"], "frequency_penalty": 0.5},
    )[i % 5]


def _gaps(requests: Sequence[TimedRequest]) -> Iterator[float]:
    for before, now in pairwise(requests):
        yield min(LONGEST_GAP_S, max(0.0, now.at_s - before.at_s))
