"""How long a trace of prompts takes with prefixes on disk, and without.

``python benchmarks/kv_wall.py CONFIG mooncake_conversation.jsonl --dir DIR`` gives the first
requests of a trace of Mooncake's form to an engine with random weights, in order, with lengths
divided by ``--divide``, and a pool of ``--pool`` tokens. Rounds alternate between an engine without
a disk, one with an empty folder below ``--dir``, and one that finds the folder as the one before
has left it, as after a restart. Tokens are drawn from the trace's hashes; answers are as long as
in the trace, divided.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from penstock import LLM, SamplingParams
from penstock.bench.traces import HashedRequest, read_mooncake


def prompt(request: HashedRequest, divide: int, vocabulary: int, most: int) -> list[int]:
    """Tokens that are equal where hashes are, at most so many."""
    each = request.block // divide
    drawn = (np.random.default_rng(number) for number in request.hash_ids)
    parts = [generator.integers(1, vocabulary, each) for generator in drawn]
    tokens = np.concatenate(parts)[: max(min(request.input_length // divide, most), 1)]
    return [int(token) for token in tokens]


@dataclass(frozen=True)
class Run:
    """A replay of all prompts by one engine."""

    seconds: float
    found: float
    """Part of the prompts' tokens that were found in the pool or on disk."""


def run(options: Mapping[str, Any], prompts: list[list[int]], params: list[SamplingParams]) -> Run:
    with LLM(**options) as llm:
        llm.generate([{"prompt_token_ids": [1, 2, 3]}], SamplingParams(max_tokens=1))
        began = time.perf_counter()
        outputs = llm.generate([{"prompt_token_ids": each} for each in prompts], params)
        seconds = time.perf_counter() - began
    cached = sum(output.num_cached_tokens for output in outputs)
    return Run(seconds, cached / sum(map(len, prompts)))


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model")
    parser.add_argument("trace", type=Path)
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--requests", type=int, default=600)
    parser.add_argument("--divide", type=int, default=8)
    parser.add_argument("--pool", type=int, default=131_072, help="tokens")
    parser.add_argument("--disk", default="16GiB")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args(argv)
    config = json.loads((Path(args.model) / "config.json").read_text())
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    per_token = 4 * config["num_hidden_layers"] * config["num_key_value_heads"] * head_dim
    most = config["max_position_embeddings"] - 512
    requests = read_mooncake(args.trace, args.requests)
    prompts = [prompt(each, args.divide, config["vocab_size"], most) for each in requests]
    params = [
        SamplingParams(max_tokens=max(each.output_length // args.divide, 1), ignore_eos=True)
        for each in requests
    ]
    options: dict[str, Any] = {
        "model": args.model,
        "load_format": "dummy",
        "kv_cache_bytes": args.pool * per_token,
        "artifact": False,
    }
    total = sum(map(len, prompts))
    print(f"{len(prompts)} prompts, {total:,} tokens, {per_token:,} bytes of KV a token")
    for _ in range(args.rounds):
        folder = Path(tempfile.mkdtemp(dir=args.dir))
        below = {**options, "kv_disk": f"{folder}:{args.disk}"}
        try:
            for name, chosen in (("no disk", options), ("empty disk", below), ("restarted", below)):
                made = run(chosen, prompts, params)
                print(f"{name}: {made.seconds:.1f} s, {made.found:.1%} found", flush=True)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1:])
