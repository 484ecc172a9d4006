"""The checkpoint that all engines share, and what is made from it."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGUFReader
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from comparison.checkpoint import prepare_checkpoint
from comparison.vocabulary import build_vocabulary
from penstock.errors import ConfigError, TokenizerError
from penstock.gguf.metadata import read_metadata
from penstock.tokenizer import load_tokenizer

ROOT = Path(__file__).parents[2]
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "hidden_act": "silu",
    "vocab_size": 1200,
    "bos_token_id": 1100,
    "eos_token_id": 1101,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "rope_scaling": {
        "factor": 32.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}


COMMON = {name: CONFIG[name] for name in CONFIG if name not in ("rope_scaling", "hidden_act")}
EXPERTS: dict[str, Any] = COMMON | {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "hidden_act": "silu",
    "moe_intermediate_size": 64,
    "num_experts": 3,
    "num_experts_per_tok": 2,
}
GEMMA: dict[str, Any] = COMMON | {
    "architectures": ["Gemma3ForCausalLM"],
    "model_type": "gemma3_text",
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 32,
    "rope_local_base_freq": 10000.0,
    "sliding_window": 16,
    "sliding_window_pattern": 2,
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = tmp_path_factory.mktemp("config")
    (source / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    return prepare_checkpoint(source, source / "hf", seed=0).folder


def exporter(name: str) -> ModuleType:
    """A script of the exporters, which are no package: each runs in another environment."""
    path = ROOT / "benchmarks" / "cpu" / "exporters" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_vocabulary_of_letters() -> None:
    vocabulary = build_vocabulary(2000, 1500, 1700)
    assert len(vocabulary.tokens) == len(set(vocabulary.tokens)) == 2000
    words = vocabulary.tokens[vocabulary.first_word : vocabulary.last_word]
    assert len(words) == 1500 - 256
    assert all(word.isascii() and word.islower() for word in words)
    known = set(vocabulary.tokens)
    assert all({a, b, a + b} <= known for a, b in vocabulary.merges)


@pytest.mark.parametrize(("bos", "eos"), [(300, 300), (10, 300), (300, 2000)])
def test_special_tokens_that_do_not_fit(bos: int, eos: int) -> None:
    with pytest.raises(ValueError, match="special tokens"):
        build_vocabulary(2000, bos, eos)


def test_transformers_and_penstock_read_it(checkpoint: Path) -> None:
    model, info = AutoModelForCausalLM.from_pretrained(
        checkpoint, dtype=torch.bfloat16, output_loading_info=True
    )
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    deviation = model.model.layers[1].mlp.down_proj.weight.float().std().item()
    assert deviation == pytest.approx(256**-0.5, rel=0.02)
    tokenizer = load_tokenizer(checkpoint)
    ids = list(range(256, 1100))
    text = tokenizer.decode(ids)
    assert text.isascii()
    assert text == "".join(build_vocabulary(1200, 1100, 1101).tokens[256:1100])


def test_it_is_written_once_for_a_seed(checkpoint: Path) -> None:
    weights = checkpoint / "model.safetensors"
    before = weights.stat().st_mtime_ns, weights.read_bytes()
    prepare_checkpoint(checkpoint, checkpoint, seed=0)
    assert weights.stat().st_mtime_ns == before[0]
    other = prepare_checkpoint(checkpoint, checkpoint.parent / "other", seed=1)
    assert (other.folder / "model.safetensors").read_bytes() != before[1]


def test_gguf_holds_the_same_weights(checkpoint: Path, tmp_path: Path) -> None:
    gguf_file = exporter("gguf_file")
    path = tmp_path / "bf16.gguf"
    gguf_file.write_bf16(checkpoint, path)
    found = {tensor.name: tensor for tensor in GGUFReader(path).tensors}
    weights = load_file(checkpoint / "model.safetensors")
    assert len(found) == len(weights) + 1  # the rotation's factors

    def raw(name: str) -> torch.Tensor:
        data = torch.from_numpy(np.array(found[name].data))
        shape = [int(n) for n in reversed(found[name].shape)]
        return data.view(torch.float32 if len(shape) == 1 else torch.bfloat16).view(shape)

    assert torch.equal(raw("token_embd.weight"), weights["model.embed_tokens.weight"])
    down = "model.layers.1.mlp.down_proj.weight"
    assert torch.equal(raw("blk.1.ffn_down.weight"), weights[down])
    norm = "model.layers.0.input_layernorm.weight"
    assert torch.equal(raw("blk.0.attn_norm.weight"), weights[norm].float())
    for name, heads in (("q", 4), ("k", 2)):
        # llama.cpp rotates rows 2i and 2i + 1 of a head where the checkpoint has i and i + 16.
        rows = raw(f"blk.1.attn_{name}.weight").view(heads, 16, 2, 128)
        kept = weights[f"model.layers.1.self_attn.{name}_proj.weight"].view(heads, 2, 16, 128)
        assert torch.equal(rows[:, :, 0], kept[:, 0])
        assert torch.equal(rows[:, :, 1], kept[:, 1])
    metadata = read_metadata(path, TokenizerError)
    assert metadata["llama.attention.head_count_kv"] == 2
    assert metadata["tokenizer.ggml.eos_token_id"] == 1101


@pytest.mark.parametrize("config", [EXPERTS, GEMMA], ids=["experts", "gemma"])
def test_gguf_of_experts_and_of_shifted_norms(config: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    folder = prepare_checkpoint(tmp_path, tmp_path / "hf", seed=0).folder
    _, info = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.bfloat16, output_loading_info=True
    )
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    exporter("gguf_file").write_bf16(folder, tmp_path / "bf16.gguf")
    reader = GGUFReader(tmp_path / "bf16.gguf")
    found = {tensor.name: np.array(tensor.data) for tensor in reader.tensors}
    weights = load_file(folder / "model.safetensors")
    norm = weights["model.layers.1.input_layernorm.weight"].float()
    shift = 1 if config is GEMMA else 0
    assert torch.equal(torch.from_numpy(found["blk.1.attn_norm.weight"]), norm + shift)
    assert norm.mean().item() == pytest.approx(1 - shift, abs=0.05)
    metadata = read_metadata(tmp_path / "bf16.gguf", TokenizerError)
    if config is GEMMA:
        assert metadata["gemma3.attention.sliding_window"] == 16
    else:
        assert metadata["qwen3moe.expert_used_count"] == 2
        for ours, name in (("gate", "gate_proj"), ("up", "up_proj"), ("down", "down_proj")):
            prefix = "model.layers.1.mlp.experts"
            stack = torch.stack([weights[f"{prefix}.{e}.{name}.weight"] for e in range(3)])
            data = torch.from_numpy(found[f"blk.1.ffn_{ours}_exps.weight"]).view(torch.bfloat16)
            assert torch.equal(data.view(stack.shape), stack)


def test_rotation_factors_are_those_of_transformers(checkpoint: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    scaled = model.model.rotary_emb.inv_freq.double()
    plain = 500000.0 ** -(torch.arange(0, 32, 2, dtype=torch.float64) / 32)
    factors = torch.from_numpy(exporter("gguf_file").llama3_factors(CONFIG)).double()
    assert torch.allclose(plain / factors, scaled, rtol=1e-5, atol=0)


@pytest.mark.parametrize("precision", ["int4", "int8"])
def test_compressed_tensors_are_near_the_weights(
    checkpoint: Path, tmp_path: Path, precision: str
) -> None:
    exporter("compressed_checkpoint").export(checkpoint, tmp_path / "out", precision)
    made = load_file(tmp_path / "out" / "model.safetensors")
    name = "model.layers.0.mlp.down_proj.weight"
    weight = load_file(checkpoint / "model.safetensors")[name].float()
    scale = made[f"{name}_scale"].float()
    if precision == "int4":
        packed = made[f"{name}_packed"]
        codes = torch.stack([(packed >> (4 * i)) & 15 for i in range(8)], 2).flatten(1) - 8
        assert made[f"{name}_shape"].tolist() == [128, 256]
        step = scale.repeat_interleave(128, 1)
    else:
        codes = made[name]
        step = scale
    # Half a step, and what a bfloat16 scale takes off the largest code.
    assert ((codes * step - weight).abs() / step).max() <= 0.5 + 7.5 / 256
    assert (tmp_path / "out" / "tokenizer.json").exists()
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["quantization_config"]["ignore"] == ["lm_head"]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"eos_token_id": [1101, 1102]}, r"eos_token_id \[1101, 1102\]; .* needs one number there"),
        ({"bos_token_id": None}, "bos_token_id null"),
        ({"vocab_size": 96}, r"cannot be compared: its vocabulary has 96 tokens, and .* are 258"),
        ({"bos_token_id": 7}, r"special tokens 7 and \d+ must differ and lie in \[256, "),
    ],
)
def test_a_shape_without_a_vocabulary_for_all_is_refused_before_anything_is_written(
    changed: dict[str, Any], message: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | changed))
    with pytest.raises(ConfigError, match=message):
        prepare_checkpoint(tmp_path, tmp_path / "hf", seed=0)
    assert not (tmp_path / "hf").exists()
