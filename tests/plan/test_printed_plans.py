"""Plans of published shapes are, op for op, what was recorded of them.

A change of a recorded plan is a change of what models compute, or of how fast. Where one is meant,
remove ``printed/NAME.txt`` and run the test once, which writes it again and fails.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.models.registry import read_spec
from penstock.plan.explain import explain
from penstock.plan.fuse import fuse
from penstock.plan.lower import lower
from penstock.plan.memory import plan_memory
from penstock.plan.plan import Plan
from penstock.quant.scheme import GridScheme, GroupScheme, Quantization
from penstock.weights.model_folder import load_draft_heads_spec

RECORDED = Path(__file__).parent / "printed"

_SHAPE: dict[str, Any] = {
    "vocab_size": 301,
    "hidden_size": 64,
    "intermediate_size": 100,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "dtype": "bfloat16",
}


def _config(architecture: str, **fields: object) -> dict[str, object]:
    return {"architectures": [architecture], **_SHAPE, **fields}


_LLAMA = _config("LlamaForCausalLM")
_QWEN3 = _config("Qwen3ForCausalLM", head_dim=32, tie_word_embeddings=True)


def _heads(folder: Path, kind: Any, **fields: object) -> Plan:
    (folder / "config.json").write_text(json.dumps(fields))
    return lower(load_draft_heads_spec(folder, kind, read_spec(_LLAMA), dummy=True))


_EAGLE = {k: v for k, v in _SHAPE.items() if k != "dtype"} | {"num_hidden_layers": 1}

CASES: dict[str, Callable[[Path], Plan]] = {
    "llama": lambda _: lower(read_spec(_LLAMA)),
    "llama-biases-float16": lambda _: lower(
        read_spec(_config("LlamaForCausalLM", attention_bias=True, mlp_bias=True)),
        "float16",
        half=True,
        kv_dtype="int8",
    ),
    "llama-int8-taps": lambda _: lower(
        read_spec(_LLAMA),
        "float32",
        128,
        Quantization(GridScheme(8), GridScheme(8)),
        taps=(0, 2, 2),
    ),
    "mistral-window": lambda _: lower(
        read_spec(_config("MistralForCausalLM", sliding_window=16)), "float32"
    ),
    "qwen2-mixed": lambda _: lower(
        read_spec(
            _config(
                "Qwen2ForCausalLM",
                hidden_act="gelu",
                use_sliding_window=True,
                sliding_window=9,
                max_window_layers=1,
            )
        )
    ),
    "qwen3-int4": lambda _: lower(
        read_spec(_QWEN3), quantization=Quantization(GroupScheme(4, 32), activations=False)
    ),
    "medusa": lambda folder: _heads(folder, "medusa", medusa_num_heads=2, medusa_num_layers=1),
    "eagle1": lambda folder: _heads(folder, "eagle", **_EAGLE, bias=True),
    "eagle3": lambda folder: _heads(folder, "eagle", **_EAGLE, draft_vocab_size=50),
}


@pytest.mark.parametrize("name", CASES)
def test_a_plan_is_what_was_recorded_of_it(name: str, tmp_path: Path) -> None:
    primitive = CASES[name](tmp_path)
    texts = [explain(plan, plan_memory(plan, 64, 8)) for plan in (primitive, fuse(primitive))]
    text = "\n\nfused\n\n".join(texts) + "\n"
    recorded = RECORDED / f"{name}.txt"
    if not recorded.exists():
        recorded.write_text(text)
        pytest.fail(f"recorded {recorded}")
    assert text == recorded.read_text()
