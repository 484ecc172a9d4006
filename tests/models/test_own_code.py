"""Families that exist as code of their checkpoints alone: as published, as others, and refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.own_code_configs import GLM4_9B
from support.own_code_families import OWN_CODE, edited

from penstock import LLM, SamplingParams
from penstock.errors import ModelError
from penstock.interface.sources import RowsOf, Stored, UnitRows
from penstock.models.registry import read_spec
from penstock.models.spec import RopeSpec
from penstock.plan.lower import lower

pytest.importorskip("transformers", reason="makes the models that are renamed")


def _said(folder: Path) -> tuple[list[int], list[float]]:
    """What the model says, and how probable that and its prompt are."""
    prompt = np.random.default_rng(3).integers(0, 256, 40).tolist()
    params = SamplingParams(
        temperature=0, max_tokens=24, ignore_eos=True, prompt_logprobs=0, logprobs=0
    )
    with LLM(str(folder), dtype="float32", backend="reference", kv_cache_bytes=1 << 22) as llm:
        (output,) = llm.generate([{"prompt_token_ids": prompt}], params)
    tokens = list(output.outputs[0].token_ids)
    chosen = [*output.prompt_logprobs[1:], *output.outputs[0].logprobs]
    steps = zip(chosen, prompt[1:] + tokens, strict=True)
    return tokens, [entry[token].logprob for entry, token in steps]


@pytest.mark.parametrize("family", OWN_CODE)
def test_it_says_what_the_same_model_of_transformers_says(family: str) -> None:
    """Outputs agree to the bit, but where rows are divided: only names and layout of tensors
    differ."""
    original, own = OWN_CODE[family].pair()
    expected, found = _said(original), _said(own)
    assert len(set(expected[0])) > 4
    assert found[0] == expected[0]
    if OWN_CODE[family].unit_head:
        np.testing.assert_allclose(found[1], expected[1], rtol=1e-5)
    else:
        assert found[1] == expected[1]


@pytest.mark.parametrize("family", OWN_CODE)
def test_unknown_fields_are_refused(family: str) -> None:
    assert read_spec(edited(family)).layers
    with pytest.raises(ModelError, match="not a field Penstock knows"):
        read_spec(edited(family, surprising_field=1))


def test_chatglm() -> None:
    spec = read_spec(edited("chatglm"))
    attention = spec.layers[0].attention
    assert (len(spec.layers), spec.vocab_size, spec.max_positions) == (2, 65024, 8192)
    assert (attention.num_kv_heads, attention.qkv_bias, attention.output_bias) == (2, True, False)
    assert attention.rope == RopeSpec(1e4, 64, interleaved=True)
    long = read_spec(GLM4_9B)
    assert (long.vocab_size, long.max_positions) == (151552, 131072)
    assert long.layers[0].attention.rope == RopeSpec(5e6, 64, interleaved=True)
    derived = {"AutoModel": "THUDM/glm-4-9b--modeling_chatglm.ChatGLMForConditionalGeneration"}
    assert read_spec({**GLM4_9B, "auto_map": derived}) == long


def test_internlm2() -> None:
    spec = read_spec(edited("internlm2", bias=...))
    attention = spec.layers[0].attention
    assert (attention.num_kv_heads, attention.qkv_bias, attention.output_bias) == (8, True, True)
    stored = Stored("model.layers.1.attention.wqkv.weight", (4096, 2048))
    runs = tuple((head * 512 + 256, head * 512 + 384) for head in range(8))
    assert lower(spec, max_positions=64).weights["layers.1.k"].source == RowsOf(stored, runs)


def test_baichuan() -> None:
    """Only the second of the two, told apart by a letter, has an output matrix of unit rows."""
    stored = Stored("lm_head.weight", (125696, 4096))
    second = lower(read_spec(edited("baichuan2")), max_positions=64).weights["head"].source
    assert second == UnitRows(stored)
    first = read_spec(edited("baichuan", architectures=["BaiChuanForCausalLM"]))
    assert lower(first, max_positions=64).weights["head"].source == stored


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("chatglm", {"add_bias_linear": True}, "add_bias_linear .* must be false"),
        ("chatglm", {"apply_residual_connection_post_layernorm": True}, "must be false"),
        ("chatglm", {"multi_query_attention": False}, "must be true"),
        ("chatglm", {"multi_query_attention": ...}, "must be true"),
        ("chatglm", {"original_rope": False}, "original_rope .* must be true"),
        ("chatglm", {"post_layer_norm": False}, "must be true"),
        ("chatglm", {"rmsnorm": False}, "must be true"),
        ("chatglm", {"pre_seq_len": 128}, "pre_seq_len .* must be none"),
        ("chatglm", {"quantization_bit": 4}, "quantization_bit .* must be 0"),
        ("chatglm", {"vocab_size": 7}, "padded_vocab_size .65024. contradicts vocab_size 7"),
        ("chatglm", {"kv_channels": 6}, "kv_channels .6. must be a multiple of 4"),
        (
            "chatglm",
            {"rope_ratio": 16, "_name_or_path": "THUDM/chatglm2-6b-32k"},
            "rope_ratio .16. must be 1: ChatGLM2",
        ),
        ("minicpm", {"rope_scaling": {"type": "longrope"}}, "longrope"),
        ("minicpm", {"scale_depth": 0.0}, "scale_depth"),
        ("minicpm", {"num_experts": 8}, "has no experts"),
        ("exaone", {"num_hidden_layers": 3}, "num_layers .2. contradicts num_hidden_layers 3"),
        ("exaone", {"activation_function": "tanh"}, "activation_function"),
        ("internlm2", {"rope_scaling": {"type": "yarn", "factor": 2.0}}, "dynamic"),
        ("internlm3", {"rope_scaling": {"rope_type": "other"}}, "is not supported"),
        ("internlm3", {"qkv_bias": 1}, "qkv_bias .1. must be true or false"),
        ("internlm3", {"attention_bias": True}, "qkv_bias .False. contradicts attention_bias"),
        ("baichuan2", {"max_position_embeddings": ...}, "13B, which are not supported"),
        ("baichuan2", {"rope_theta": 5.0}, "not a field Penstock knows"),
        ("baichuan2", {"tie_word_embeddings": True}, "must be false"),
    ],
)
def test_refused(family: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        read_spec(edited(family, **changes))


def test_a_head_of_unit_rows_is_never_quantized() -> None:
    form = {"quant_method": "gptq", "bits": 4, "group_size": 32, "lm_head": True}
    with pytest.raises(ModelError, match="cannot have head quantized"):
        lower(read_spec(edited("baichuan2", quantization_config=form)))
