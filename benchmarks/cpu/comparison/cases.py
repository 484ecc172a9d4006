"""What every engine is asked to do, and the prompts it is given for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from comparison.protocol import Request


class Metric(StrEnum):
    """What a case is for; the report's figure of it."""

    DECODE = "decode tokens/s"
    TTFT = "time to first token, s"
    OUTPUT = "output tokens/s"

    @property
    def higher_is_better(self) -> bool:
        return self is not Metric.TTFT


@dataclass(frozen=True)
class Case:
    """Requests of ``lengths`` (prompt, output), all at once, or over ``clients`` connections."""

    name: str
    title: str
    lengths: tuple[tuple[int, int], ...]
    metrics: tuple[Metric, ...]
    clients: int | None = None
    named_only: bool = False
    """Whether it is run only where it is asked for by name, since it takes minutes."""

    @property
    def over_http(self) -> bool:
        return self.clients is not None

    @property
    def longest(self) -> int:
        return max(prompt + output for prompt, output in self.lengths)

    @property
    def output_tokens(self) -> int:
        return sum(output for _, output in self.lengths)


def standard_cases(prompt: int, output: int, mixed_output: tuple[int, int]) -> list[Case]:
    """The cases by name; ``prompt`` and ``output`` are of those with one length.

    Outputs of the mixed case are drawn from ``mixed_output``, both ends included.
    """
    both = (Metric.DECODE, Metric.OUTPUT)
    cases = [
        Case("decode", "one stream", ((prompt, output),), (Metric.DECODE,)),
        Case("prefill", "prompt of 512", ((512, 1),), (Metric.TTFT,)),
    ]
    for size in (4, 8, 16, 32):
        cases.append(Case(f"batch{size}", f"batch of {size}", ((prompt, output),) * size, both))
    mixed = mixed_lengths(64, (32, 512), mixed_output)
    cases.append(Case("mixed", "64 mixed requests", mixed, (Metric.OUTPUT,)))
    for depth in (4096, 32768):
        title = f"one stream behind {depth:,} tokens"
        lengths = ((depth, output),)
        cases.append(Case(f"depth{depth}", title, lengths, (Metric.DECODE,), named_only=True))
    served = ((prompt, output),) * 32
    cases.append(Case("http", "HTTP, 16 clients", served, (Metric.OUTPUT, Metric.TTFT), clients=16))
    return cases


def mixed_lengths(
    count: int, prompts: tuple[int, int], outputs: tuple[int, int], seed: int = 0
) -> tuple[tuple[int, int], ...]:
    """Lengths drawn uniformly from both ranges, ends included; the same for the same seed."""
    generator = np.random.default_rng(seed)
    first = generator.integers(prompts[0], prompts[1], count, endpoint=True).tolist()
    second = generator.integers(outputs[0], outputs[1], count, endpoint=True).tolist()
    return tuple(zip(first, second, strict=True))


def draw_requests(case: Case, ids: range, seed: Sequence[int]) -> list[Request]:
    """Requests with uniformly random prompts out of ``ids``.

    The seed names the case and the repetition, so that every engine is given the same prompts
    in a round and no cache has ever seen them in another.
    """
    generator = np.random.default_rng([*case.name.encode(), *seed])
    return [
        Request(generator.integers(ids.start, ids.stop, prompt).tolist(), output)
        for prompt, output in case.lengths
    ]


def warm_up(requests: Sequence[Request], output: int = 4) -> list[Request]:
    """The same shapes, with outputs cut short: what an engine prepares for a shape, it does."""
    return [Request(r.prompt, min(r.output, output)) for r in requests]
