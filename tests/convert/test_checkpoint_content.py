"""A checkpoint that is written to a GGUF file is the same model: read by Penstock, weight by
weight, and by the ``gguf`` package, tensor by tensor."""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from support.checkpoints import tiny_checkpoint
from support.gguf_models import ARCHITECTURES as PACKAGE
from support.gguf_models import LLAMA3, SAID, converted, folder_family, weights_of

from penstock.convert.conversion import Converted, convert
from penstock.convert.types import FILE_TYPES
from penstock.errors import ModelError
from penstock.models.gguf.architectures import ARCHITECTURES
from penstock.models.gguf.write_rules import WRITTEN
from penstock.tokenizer.load import load_tokenizer
from penstock.weights.model_folder import load_model_spec

FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "mixtral": {},
    "qwen2": {},
    "qwen2_moe": {},
    "qwen3": {},
    "gemma": {},
    "phi3": {"sliding_window": None},
    "olmo2": {},
    "granite": {},
    "granitemoe": {},
    "smollm3": {},
    "starcoder2": {},
    **{family: SAID[family] for family in ("mistral", "gemma2", "gemma3", "qwen3_moe")},
    "deepseek_v3": {},
    "gpt_oss": {},
    "qwen3_next": {"linear_value_head_dim": 16},
}
MORE: dict[str, dict[str, Any]] = {
    "arcee": {},
    "cohere": {"tie_word_embeddings": True},
    "cohere2": {"tie_word_embeddings": True},
    "deepseek_v2": {"q_lora_rank": 24},
    "dots1": {},
    "ernie4_5": {},
    "ernie4_5_moe": {},
    "exaone4": {},
    "glm4": {},
    "glm4_moe": {},
    "glm4_moe_lite": {},
    "gpt2": {},
    "gpt_neox": {},
    "hunyuan_v1_dense": {},
    "lfm2": {},
    "lfm2_moe": {"routed_scaling_factor": 1.0},
    "llama4_text": {
        "num_hidden_layers": 4,
        "attention_chunk_size": 8192,
        "floor_scale": 8192,
        "attn_scale": 0.1,
    },
    "minimax_m2": {},
    "nemotron": {},
    "olmo": {},
    "olmo3": {},
    "olmoe": {},
    "phi": {},
    "seed_oss": {},
    "stablelm": {},
}
"""Those that take their time."""
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "long_factor": [1.0 + i for i in range(8)],
    "short_factor": [1.0 + i / 100 for i in range(8)],
    "original_max_position_embeddings": 32,
}
YARN_APART = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
    "mscale": 0.7,
    "mscale_all_dim": 1.0,
}
OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama 3": ("llama", {"rope_parameters": LLAMA3}),
    "linear": (
        "llama",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}},
    ),
    "yarn": (
        "qwen3",
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1e6,
                "factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
    ),
    "longrope": ("phi3", {"sliding_window": None, "rope_parameters": LONGROPE}),
    "biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "tied": ("llama", {"tie_word_embeddings": True}),
    "heads": ("llama", {"num_key_value_heads": 4, "head_dim": 24}),
    "windows": (
        "gemma3",
        {
            "head_dim": 16,
            "query_pre_attn_scalar": 16,
            "num_hidden_layers": 3,
            "layer_types": ["full_attention", "sliding_attention", "full_attention"],
        },
    ),
    "bfloat16": ("qwen3", {"dtype": "bfloat16"}),
    "latents without a rank of queries": ("deepseek_v3", {"q_lora_rank": None}),
    "latents with yarn": ("deepseek_v3", {"rope_parameters": {**YARN_APART, "mscale": 1.0}}),
    "no windows": ("exaone4", {"sliding_window": None, "layer_types": ["full_attention"] * 3}),
}


def written(folder: Path, target: Path, kind: str = "F32") -> Converted:
    return convert(folder, target, FILE_TYPES[kind], threads=2)


def require_same(folder: Path, path: Path) -> None:
    """Specs are equal but for the last bit of numbers, and weights in every bit."""
    theirs, own = load_model_spec(folder), load_model_spec(path)
    alike = {"names": None, "notes": (), "architecture": "", "dtype": "float32"}
    assert _rounded(replace(own, **alike)) == _rounded(replace(theirs, **alike))
    expected, found = weights_of(folder, theirs), weights_of(path, own)
    assert set(found.names()) == set(expected.names())
    for name in expected.names():
        if name.endswith("a_log"):  # files have what these are the logarithms of
            assert np.allclose(found.get(name), expected.get(name), rtol=1e-6, atol=1e-6), name
            continue
        assert np.array_equal(found.get(name), expected.get(name)), name


def _rounded(value: Any) -> Any:
    """The value with its numbers rounded to six digits."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: _rounded(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, tuple):
        return [_rounded(each) for each in value]
    return f"{value:.6g}" if isinstance(value, float) else value


@pytest.mark.parametrize(
    "family", [*FAMILIES, *(pytest.param(each, marks=pytest.mark.slow) for each in MORE)]
)
def test_the_same_model(family: str, tmp_path: Path) -> None:
    options = {**FAMILIES, **MORE}[family]
    folder, path = tiny_checkpoint(family, **options), tmp_path / "model.gguf"
    done = written(folder, path)
    assert done.notes == ()
    assert set(done.types) == {"F32"}
    require_same(folder, path)
    reader = gguf.GGUFReader(path)
    config = json.loads((folder / "config.json").read_text())
    if folder_family(config) not in PACKAGE:
        return
    expected = converted(folder, config)
    if config.get("tie_word_embeddings"):
        expected.pop("output.weight", None)
    found = {tensor.name: tensor for tensor in reader.tensors}
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert np.array_equal(found[name].data.reshape(-1), values.reshape(-1)), name
        ne = [int(n) for n in found[name].shape if n != 1]
        assert ne == [n for n in values.shape[::-1] if n != 1], name


@pytest.mark.parametrize("case", OTHERS)
def test_the_same_model_of_another_form(case: str, tmp_path: Path) -> None:
    family, options = OTHERS[case]
    folder, path = tiny_checkpoint(family, **options), tmp_path / "model.gguf"
    assert written(folder, path).notes == ()
    require_same(folder, path)


@pytest.mark.slow
def test_every_architecture_that_is_written_is_tested() -> None:
    families = {**FAMILIES, **MORE}
    tested = {load_model_spec(tiny_checkpoint(f, **o)).architecture for f, o in families.items()}
    written = {ARCHITECTURES[name].family for name in WRITTEN}
    assert written | {each for rules in WRITTEN.values() for each in rules.families} <= tested


def test_tokens_are_the_same(tmp_path: Path) -> None:
    folder, path = tiny_checkpoint("llama"), tmp_path / "model.gguf"
    written(folder, path)
    theirs, own = load_tokenizer(folder), load_tokenizer(path)
    for text in ("plain text", "Ünïcödé\n\n  12345 'll", "</s> and <s>"):
        assert own.encode(text) == theirs.encode(text)
    assert own.eos_token_ids == theirs.eos_token_ids
    assert own.bos_token_id == theirs.bos_token_id


def test_windows_that_files_cannot_say_are_noted(tmp_path: Path) -> None:
    folder = tiny_checkpoint("mistral", sliding_window=16)
    (note,) = written(folder, tmp_path / "model.gguf").notes
    assert "window" in note
    assert "16 tokens" in note
    folder = tiny_checkpoint("mistral", sliding_window=256)  # as long as the context
    assert written(folder, tmp_path / "other.gguf").notes == ()


@pytest.mark.parametrize(
    ("family", "options", "message"),
    [
        ("bloom", {}, "BloomForCausalLM is not written .* LlamaForCausalLM, "),
        ("bamba", {}, "BambaForCausalLM is not written .* has not: files have no tensor for"),
        ("deepseek_v3", {"rope_parameters": YARN_APART}, "deepseek2, .*mixer"),
        (
            "llama",
            {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}},
            r"of architecture llama, .*layers\[0\].mixer.rope.kind is dynamic",
        ),
        ("qwen3_moe", {"norm_topk_prob": False}, "routing.normalize is False"),
        ("cwm", {}, "CwmForCausalLM is not written .* shape, which it has not: "),
    ],
)
def test_what_files_cannot_hold_is_refused(
    family: str, options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    folder = tiny_checkpoint(family, **options)
    with pytest.raises(ModelError, match=message):
        written(folder, tmp_path / "model.gguf")
    assert list(tmp_path.iterdir()) == []
