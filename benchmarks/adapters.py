"""What LoRA adapters cost: 64 requests of the base, and of adapters and the base in one batch.

    python benchmarks/adapters.py benchmarks/configs/qwen3-0.6b --quantization int8

Weights and adapters are random. Rounds run one after another: the base without room for adapters,
the base with it, and a batch that mixes ``--adapters`` adapters of ``--rank`` and the base. Output
tokens a second while all decode, the best of the rounds.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from penstock import LLM, SamplingParams, TokensPrompt
from penstock.config import EngineConfig
from penstock.engine.loader import plan_engine
from penstock.interface.source_walks import tensors
from penstock.plan.adapt import adapted_matrices


def write_adapters(model: str, folder: Path, count: int, rank: int) -> dict[str, Path]:
    """Random adapters of all matrices of ``model`` that can be adapted."""
    config = EngineConfig(model=model, load_format="dummy", max_loras=1, max_lora_rank=rank)
    plan = plan_engine(config).plan
    made = {}
    for i in range(count):
        rng = np.random.default_rng(i)
        values = {}
        for name, (n, k) in adapted_matrices(plan).items():
            module = next(tensors(plan.weights[name].source)).name.removesuffix(".weight")
            at = f"base_model.model.{module}"
            scale = 0.1 / (k * rank) ** 0.25
            values[f"{at}.lora_A.weight"] = rng.standard_normal((rank, k), np.float32) * scale
            values[f"{at}.lora_B.weight"] = rng.standard_normal((n, rank), np.float32) * scale
        path = folder / f"a{i}"
        path.mkdir()
        save_file(values, path / "adapter_model.safetensors")
        fields = {
            "peft_type": "LORA",
            "r": rank,
            "lora_alpha": rank,
            "bias": "none",
            "target_modules": "all-linear",
        }
        (path / "adapter_config.json").write_text(json.dumps(fields))
        made[path.name] = path
    return made


def decode_rate(llm: LLM, requests: int, tokens: int, loras: list[str | None]) -> float:
    """Output tokens a second, from the first token of the last request on."""
    vocabulary = 1000
    prompts = [
        TokensPrompt(prompt_token_ids=[(7 * i + 3 * j) % vocabulary for j in range(8)])
        for i in range(requests)
    ]
    params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    began, begun = 0.0, 0
    done: dict[str, int] = {}
    for output in llm.stream(prompts, params, lora=loras):
        done[output.request_id] = len(output.outputs[0].token_ids)
        if len(done) == requests and not began:
            began, begun = time.perf_counter(), sum(done.values())
    return (sum(done.values()) - begun) / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--quantization", default="none")
    parser.add_argument("--adapters", type=int, default=8)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=2)
    a = parser.parse_args()
    options = {
        "load_format": "dummy",
        "backend": a.backend,
        "quantization": a.quantization,
        "max_num_seqs": a.requests,
        "max_model_len": 256,
        "enable_prefix_caching": False,
        "artifact": False,
    }
    none: list[str | None] = [None] * a.requests
    with tempfile.TemporaryDirectory() as folder:
        adapters = write_adapters(a.model, Path(folder), a.adapters, a.rank)
        names = [None, *adapters]
        mixed = [names[i % len(names)] for i in range(a.requests)]
        with LLM(a.model, **options) as llm:
            plain = max(decode_rate(llm, a.requests, a.tokens, none) for _ in range(a.rounds))
        options |= {"lora_modules": adapters, "max_lora_rank": a.rank}
        with LLM(a.model, **options) as llm:
            rates = [
                max(decode_rate(llm, a.requests, a.tokens, loras) for _ in range(a.rounds))
                for loras in (none, mixed)
            ]
    print(f"{a.model}, {a.quantization}, {a.requests} requests, rank {a.rank}: tokens a second")
    print(f"  base                             {plain:8.1f}")
    for what, rate in zip(
        ("base, with room for adapters", "adapters and base"), rates, strict=True
    ):
        print(f"  {what:<32} {rate:8.1f}  {rate / plain:.2f} times the base's")


if __name__ == "__main__":
    main()
