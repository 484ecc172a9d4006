"""Draw a trace whose prompts share prefixes, in Mooncake's form: so the order in which a disk of
prefixes makes room is tried on others than the one that it was chosen by.

    python benchmarks/drawn_prefixes.py chats.jsonl --kind conversations --seed 1

``conversations``: each comes back with its whole history, after think times of a heavy tail.
``agents``: tasks of many short steps, which begin with one of a few long system prompts.
``documents``: long ones, most of which are asked about once. ``mixed``: a third of each, by
requests.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from penstock.workload.trace_line import MOONCAKE_BLOCK, TraceLine

KINDS: Final = ("conversations", "agents", "documents")
_LONGEST: Final = 60_000
"""Most tokens of a prompt, at which a conversation ends."""
_SYSTEMS: Final = 30
"""System prompts of agents, the n-th of which is used 1/n as often as the first."""


@dataclass
class _Prompt:
    """What is asked again, each time with more behind it."""

    ids: list[int]
    tokens: int

    def grow(self, tokens: int, ids: Iterator[int]) -> None:
        self.tokens = min(self.tokens + tokens, _LONGEST)
        while len(self.ids) * MOONCAKE_BLOCK < self.tokens:
            self.ids.append(next(ids))


class _Drawing:
    """Requests, each as a line of the trace; times are in seconds."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._ids = count()
        lengths = self._rng.integers(2, 17, _SYSTEMS)
        self._systems = [[next(self._ids) for _ in range(n)] for n in lengths.tolist()]
        self._share = 1 / np.arange(1, _SYSTEMS + 1)
        self._share /= self._share.sum()

    def draw(self, kind: str, requests: int, seconds: float) -> list[TraceLine]:
        """So many requests or a few more, the first of each series within so many seconds."""
        series = dict(zip(KINDS, (self._conversation, self._task, self._document), strict=True))
        lines: list[TraceLine] = []
        while len(lines) < requests:
            lines += series[kind](float(self._rng.uniform(0, seconds)))
        return lines

    def _conversation(self, at: float) -> Iterator[TraceLine]:
        prompt = _Prompt([], 0)
        prompt.grow(self._tokens(500, 1.2), self._ids)
        for _ in range(int(self._rng.zipf(1.9)) if self._rng.random() < 0.5 else 1):
            answer = self._tokens(250, 0.8)
            yield _line(at, prompt, answer)
            if prompt.tokens >= _LONGEST or len(prompt.ids) > 100:
                return
            prompt.grow(answer + self._tokens(80, 1.2), self._ids)
            at += self._gap(60, 1.8)

    def _task(self, at: float) -> Iterator[TraceLine]:
        system = self._systems[int(self._rng.choice(_SYSTEMS, p=self._share))]
        prompt = _Prompt(list(system), len(system) * MOONCAKE_BLOCK)
        prompt.grow(self._tokens(300, 1.0), self._ids)
        for _ in range(int(self._rng.geometric(1 / 8))):
            answer = self._tokens(120, 0.7)
            yield _line(at, prompt, answer)
            prompt.grow(answer + self._tokens(500, 1.2), self._ids)
            at += self._gap(8, 1.0)

    def _document(self, at: float) -> Iterator[TraceLine]:
        document = _Prompt([], 0)
        document.grow(self._tokens(9000, 0.7), self._ids)
        for _ in range(1 if self._rng.random() < 0.7 else int(self._rng.geometric(0.4))):
            asked = _Prompt(document.ids[: document.tokens // MOONCAKE_BLOCK], 0)
            asked.grow(document.tokens + self._tokens(60, 0.8), self._ids)
            yield _line(at, asked, self._tokens(300, 0.8))
            at += self._gap(90, 1.2)

    def _tokens(self, median: float, spread: float) -> int:
        return max(int(self._rng.lognormal(np.log(median), spread)), 1)

    def _gap(self, median: float, spread: float) -> float:
        return float(self._rng.lognormal(np.log(median), spread))


def _line(at: float, prompt: _Prompt, answer: int) -> TraceLine:
    return TraceLine(
        timestamp=int(at * 1000),
        input_length=prompt.tokens,
        output_length=answer,
        hash_ids=list(prompt.ids),
    )


def drawn(kind: str, requests: int, seconds: float, seed: int) -> list[TraceLine]:
    """The lines of a trace, by their times."""
    drawing = _Drawing(seed)
    kinds = KINDS if kind == "mixed" else (kind,)
    lines = [line for each in kinds for line in drawing.draw(each, requests // len(kinds), seconds)]
    return sorted(lines, key=lambda line: line.timestamp or 0.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--kind", choices=(*KINDS, "mixed"), default="mixed")
    parser.add_argument("--requests", type=int, default=12_000)
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    lines = drawn(args.kind, args.requests, args.seconds, args.seed)
    args.out.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))


if __name__ == "__main__":
    main()
