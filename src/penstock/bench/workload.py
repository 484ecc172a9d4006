"""Workloads: requests of random tokens, of given lengths."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from penstock.bench.traces import Lengths
from penstock.errors import ConfigError
from penstock.interface.messages import EngineRequest
from penstock.sampling.params import SamplingParams


def fixed_lengths(count: int, prompt: int, output: int) -> list[Lengths]:
    return [Lengths(prompt, output)] * count


def check_fit(lengths: Sequence[Lengths], max_model_len: int) -> None:
    """Raise ConfigError if a request is longer than the engine takes."""
    too_long = [n for n in lengths if n.prompt + n.output > max_model_len]
    if too_long:
        worst = max(too_long, key=lambda n: n.prompt + n.output)
        raise ConfigError(
            f"{len(too_long)} of {len(lengths)} requests exceed the engine's {max_model_len} "
            f"tokens; the longest has {worst.prompt} + {worst.output}: use shorter lengths (of a "
            "trace with --scale), or raise --max-model-len as far as the model allows"
        )


def random_requests(
    lengths: Sequence[Lengths], vocab_size: int, seed: int, prefix: str = "bench"
) -> list[EngineRequest]:
    """Greedy requests with uniformly random prompts, which share no prefix worth caching.

    End-of-sequence is ignored, so that outputs have exactly the lengths asked for.
    """
    generator = np.random.default_rng(seed)
    return [
        EngineRequest(
            request_id=f"{prefix}-{i}",
            prompt_token_ids=generator.integers(vocab_size, size=n.prompt).tolist(),
            params=SamplingParams(temperature=0.0, max_tokens=n.output, ignore_eos=True),
        )
        for i, n in enumerate(lengths)
    ]
