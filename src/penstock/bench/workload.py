"""Workloads: prompts of random tokens, with lengths that are fixed or recorded."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from penstock.bench.traces import Lengths
from penstock.errors import ConfigError
from penstock.interface.messages import EngineRequest
from penstock.sampling.params import SamplingParams


class _TraceLine(msgspec.Struct):
    input_length: int
    output_length: int


def fixed_lengths(count: int, prompt: int, output: int) -> list[Lengths]:
    return [Lengths(prompt, output)] * count


def read_lengths(path: Path, limit: int | None = None, scale: float = 1.0) -> list[Lengths]:
    """Lengths of the first ``limit`` requests of a trace, times ``scale`` but at least 1.

    ``.csv``: the columns ContextTokens and GeneratedTokens (Azure's LLM inference traces).
    ``.jsonl``: the fields input_length and output_length (Mooncake's traces).
    Requests without a prompt or an output are left out: there is nothing to run. Raises
    ConfigError where the file is neither, and OSError.
    """
    found: list[Lengths] = []
    with path.open(encoding="utf-8", newline="") as file:
        try:
            if path.suffix == ".csv":
                rows = (
                    (int(row["ContextTokens"]), int(row["GeneratedTokens"]))
                    for row in csv.DictReader(file)
                )
            else:
                decoder = msgspec.json.Decoder(_TraceLine)
                lines = (decoder.decode(line) for line in file if line.strip())
                rows = ((line.input_length, line.output_length) for line in lines)
            for prompt, output in rows:
                if limit is not None and len(found) == limit:
                    break
                if prompt > 0 and output > 0:
                    found.append(
                        Lengths(max(1, round(prompt * scale)), max(1, round(output * scale)))
                    )
        except (KeyError, TypeError, ValueError, msgspec.DecodeError) as error:
            raise ConfigError(
                f"{path}: not a request trace ({error!r}); a .csv needs the columns ContextTokens "
                "and GeneratedTokens, a .jsonl the fields input_length and output_length"
            ) from None
    if not found:
        raise ConfigError(f"{path}: holds no request with a prompt and an output")
    return found


def check_fit(lengths: Sequence[Lengths], max_model_len: int) -> None:
    """Raise ConfigError if a request is longer than the engine takes."""
    too_long = [n for n in lengths if n.prompt + n.output > max_model_len]
    if too_long:
        worst = max(too_long, key=lambda n: n.prompt + n.output)
        raise ConfigError(
            f"{len(too_long)} of {len(lengths)} requests exceed the engine's {max_model_len} "
            f"tokens; the longest has {worst.prompt} + {worst.output}: use shorter lengths, "
            "scale a trace's with --scale, or raise --max-model-len"
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
