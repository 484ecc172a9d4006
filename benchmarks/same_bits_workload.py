"""Models, engine setups and requests of ``same_bits.py``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

import penstock
from penstock import GrammarSpec, PoolingParams, SamplingParams

PRECISIONS: dict[str, dict[str, Any]] = {
    "bfloat16": {},
    "float32": {"dtype": "float32"},
    "bfloat16 kv-int8": {"kv_cache_dtype": "int8"},
    "bfloat16 kv-float32": {"kv_cache_dtype": "float32"},
    "float32 kv-int8": {"dtype": "float32", "kv_cache_dtype": "int8"},
    "float32 kv-bfloat16": {"dtype": "float32", "kv_cache_dtype": "bfloat16"},
    "int8": {"quantization": "int8"},
    "int8 kv-int8": {"quantization": "int8", "kv_cache_dtype": "int8"},
    "int8 float32": {"quantization": "int8", "dtype": "float32"},
    "int8 plain-head": {"quantization": "int8", "quantize_head": False},
    "int8 weights": {"quantization": "int8", "quantize_activations": False},
    "int8 group-128": {"quantization": "int8", "quantization_group": 128},
    "int8 group-64 zero-points": {
        "quantization": "int8",
        "quantization_group": 64,
        "quantization_zero_points": True,
    },
    "int4": {"quantization": "int4"},
    "int4 rows": {"quantization": "int4", "quantization_group": 0},
    "int4 group-32": {"quantization": "int4", "quantization_group": 32},
    "int4 group-128 float32": {
        "quantization": "int4",
        "quantization_group": 128,
        "dtype": "float32",
    },
    "int4 group-64 zero-points": {
        "quantization": "int4",
        "quantization_group": 64,
        "quantization_zero_points": True,
    },
    "int4 weights": {"quantization": "int4", "quantize_activations": False},
    "int4 weights group-32 zero-points float32": {
        "quantization": "int4",
        "quantization_group": 32,
        "quantization_zero_points": True,
        "quantize_activations": False,
        "dtype": "float32",
    },
}
FEW_BLOCKS = {"kv_cache_bytes": 1 << 20, "max_num_seqs": 8, "max_model_len": 192}
"""A cache of so few blocks that the demo model's sequences are preempted."""


@dataclass(frozen=True)
class Model:
    """A checkpoint, or a configuration without weights, that is recorded under ``name``."""

    name: str
    path: str
    dummy: bool = False
    big: bool = False
    """Whether tokens take so long that few are asked for, and no prompt's log-probabilities."""

    def setups(self) -> dict[str, dict[str, Any]]:
        """Options of the engine by their name in records."""
        found = dict(PRECISIONS)
        if not self.big:
            found["speculative ngram"] = {"speculative": "ngram:num_tokens=4"}
            found["speculative self"] = {"speculative": "self"}
            found["one-by-one"] = {"max_num_batched_tokens": 1, "max_num_seqs": 1}
        if self.name == "demo":
            found |= {
                "speculative draft": {"speculative": f"draft:model={penstock.draft_model_path()}"},
                "speculative medusa": {
                    "speculative": f"medusa:model={penstock.medusa_heads_path()}"
                },
                "speculative eagle": {"speculative": f"eagle:model={penstock.eagle_head_path()}"},
                "few-blocks": FEW_BLOCKS,
            }
        return found


@dataclass(frozen=True)
class Request:
    """One request of the workload; ``pooling`` makes it one for an embedding."""

    name: str
    prompt: str | list[int]
    params: SamplingParams = field(default_factory=SamplingParams)
    pooling: PoolingParams | None = None


def requests_of(model: Model, vocab_size: int, has_text: bool) -> list[Request]:
    """The workload: prompts of mixed lengths by seed, each with other sampling options."""
    longest, short = (40, 4) if model.big else (150, 16)

    def tokens(seed: int, length: int) -> list[int]:
        drawn = np.random.default_rng(seed).integers(3, vocab_size, min(length, longest))
        return [int(token) for token in drawn]

    def params(**options: Any) -> SamplingParams:
        return SamplingParams(**({"max_tokens": short, "ignore_eos": True} | options))

    greedy = params(temperature=0.0, logprobs=3)
    found = [
        Request("greedy 1", tokens(1, 1), greedy),
        Request("greedy 31", tokens(2, 31), greedy),
        Request("greedy 150", tokens(3, 150), greedy),
        Request("sampled", tokens(4, 9), params(seed=1, logprobs=5)),
        Request("top-k", tokens(5, 33), params(seed=2, temperature=0.8, top_k=20)),
        Request("top-p", tokens(6, 64), params(seed=3, temperature=0.7, top_p=0.9, logprobs=0)),
        Request("min-p", tokens(7, 17), params(seed=4, min_p=0.05, top_k=50, top_p=0.95)),
        Request(
            "penalties",
            tokens(8, 40),
            params(
                seed=5,
                repetition_penalty=1.2,
                frequency_penalty=0.4,
                presence_penalty=0.3,
                logit_bias={5: 4.0, 7: -100.0},
                logprobs=2,
            ),
        ),
        Request("greedy penalties", tokens(9, 12), params(temperature=0, repetition_penalty=1.3)),
        Request("n=2", tokens(10, 50), params(n=2, seed=6, temperature=1.2, logprobs=1)),
        Request(
            "ends",
            tokens(11, 20),
            params(seed=7, ignore_eos=False, min_tokens=2, stop_token_ids=tuple(range(3, 40))),
        ),
        Request("embedding last", tokens(12, 33), pooling=PoolingParams()),
        Request("embedding mean", tokens(13, 70), pooling=PoolingParams(pooling="mean")),
    ]
    if not model.big:
        asked = params(temperature=0.0, prompt_logprobs=2, logprobs=2)
        found.append(Request("prompt log-probabilities", tokens(14, 45), asked))
    if has_text:
        texts = params(ignore_eos=False, max_tokens=24)
        number = GrammarSpec(kind="regex", text="[0-9]{3}-[a-f]{2,5}")
        found += [
            Request("text", "def fib(n):\n", params(temperature=0.0, max_tokens=24)),
            Request("text sampled", "Once upon a time", params(seed=8, max_tokens=24)),
            Request("text stops", "x = [", params(temperature=0.0, stop=("\n", "]"))),
            Request("grammar", "number: ", params(temperature=0.0, grammar=number)),
            Request("text ends", "import os\n", texts),
        ]
    return found
