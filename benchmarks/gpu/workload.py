"""How much is measured, and with which requests."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from penstock.bench.traces import Lengths


@dataclass(frozen=True)
class Size:
    """Lengths are tokens. ``quick`` measures the same goals with fewer repeats."""

    decode_context: int = 1024
    decode_steps: int = 64
    host_batch: int = 256
    host_context: int = 128
    prefill: int = 8192
    chunk: int = 256
    chunk_decodes: int = 32
    positions: tuple[int, ...] = (128, 1024, 2048, 4096, 6144, 8128)
    position_steps: int = 32
    mixed: int = 256
    mixed_prompt: tuple[int, int] = (32, 1024)
    mixed_output: tuple[int, int] = (32, 256)
    repeats: int = 5
    replays: int = 20

    @property
    def longest(self) -> int:
        """Most tokens of any request, prompt and output together."""
        position = max(self.positions) + self.position_steps
        mixed = self.mixed_prompt[1] + self.mixed_output[1]
        return max(position, self.prefill, mixed) + 64

    def smallest(self) -> Size:
        """The size of a dry run."""
        return Size(
            decode_context=8,
            decode_steps=2,
            host_batch=2,
            host_context=8,
            prefill=12,
            chunk=4,
            chunk_decodes=1,
            positions=(4,),
            position_steps=2,
            mixed=2,
            mixed_prompt=(2, 4),
            mixed_output=(2, 2),
            repeats=1,
            replays=1,
        )

    def quick(self) -> Size:
        return Size(
            decode_steps=24,
            positions=(128, 2048, 8128),
            position_steps=12,
            repeats=2,
            replays=8,
        )


def mixed_lengths(size: Size, seed: int = 0) -> list[Lengths]:
    """Lengths of ``size.mixed`` requests, log-uniform: many short ones and some long."""
    generator = np.random.default_rng(seed)

    def drawn(ends: tuple[int, int]) -> list[int]:
        logs = generator.uniform(np.log(ends[0]), np.log(ends[1] + 1), size.mixed)
        return [int(value) for value in np.exp(logs).clip(*ends)]

    prompts, outputs = drawn(size.mixed_prompt), drawn(size.mixed_output)
    return [Lengths(p, o) for p, o in zip(prompts, outputs, strict=True)]
