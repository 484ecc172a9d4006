"""Configurations of Gemma, Falcon, Phi, GPT-2 and their like: as published, and refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.checkpoints import load_oracle, tiny_checkpoint
from support.families import PUBLISHED, edited
from support.families.falcon import FALCON_11B
from support.needs import require_native

from penstock import LLM, SamplingParams
from penstock.errors import ModelError
from penstock.interface.sources import RowsOf, Shifted, Stored, Transposed
from penstock.models.registry import read_spec
from penstock.models.spec import AlibiSpec, ClampSpec, MlpSpec, NormSpec, PositionTable, RopeSpec
from penstock.plan.lower import lower
from penstock.weights.checkpoint import open_weights
from penstock.weights.model_folder import load_model_spec


@pytest.mark.parametrize("family", ["gemma", "gemma2"])
def test_gemma_norms_are_stored_less_1(family: str) -> None:
    weights = lower(read_spec(edited(family)), max_positions=64).weights
    shifted = {name for name, w in weights.items() if isinstance(w.source, Shifted)}
    assert shifted == {name for name in weights if name.endswith("norm")}


def test_gemma() -> None:
    """``gelu`` meant its approximation; most of what Gemma's layers are may be left unsaid."""
    spec = read_spec(edited("gemma"))
    assert (spec.tie_embeddings, spec.layers[0].attention.scale) == (True, 1 / 16)
    for silent in ("head_dim", "hidden_act", "rope_theta", "attention_bias"):
        assert read_spec(edited("gemma", **{silent: ...})) == spec
    named = read_spec(edited("gemma", hidden_activation="gelu_pytorch_tanh"))
    assert named == spec
    assert isinstance(named.layers[0].mlp, MlpSpec)
    assert named.layers[0].mlp.activation == "gelu_tanh"


def test_gemma2() -> None:
    spec = read_spec(edited("gemma2"))
    attention = spec.layers[0].attention
    assert [layer.attention.window for layer in spec.layers] == [4096, None, 4096, None, 4096]
    assert (attention.scale, attention.softcap, spec.logits_softcap) == (224**-0.5, 50.0, 30.0)
    fields = ("attn_logit_softcapping", "final_logit_softcapping", "sliding_window", "head_dim")
    assert read_spec(edited("gemma2", **dict.fromkeys(fields, ...))) == spec
    uncapped = read_spec(edited("gemma2", **dict.fromkeys(fields[:2])))
    assert (uncapped.layers[0].attention.softcap, uncapped.logits_softcap) == (None, None)
    assert (
        read_spec(edited("gemma2", query_pre_attn_scalar=...)).layers[0].attention.scale == 1 / 16
    )


def test_phi() -> None:
    spec = read_spec(edited("phi"))
    layer, rope = spec.layers[0], spec.layers[0].attention.rope
    assert (layer.parallel, layer.mlp_norm, spec.head_bias) == (True, None, True)
    assert rope == RopeSpec(1e4, 32)
    assert layer.attention.num_kv_heads == 32
    weights = lower(spec).weights
    assert weights["head.bias"].source == Stored("lm_head.bias", (51200,))
    assert weights["layers.1.down.bias"].source == Stored("model.layers.1.mlp.fc2.bias", (2560,))
    half = read_spec(edited("phi", partial_rotary_factor=...)).layers[0].attention.rope
    assert half == RopeSpec(1e4, 40)
    for silent in ("hidden_act", "layer_norm_eps", "rope_theta", "tie_word_embeddings"):
        assert read_spec(edited("phi", **{silent: ...})) == spec


def test_starcoder2() -> None:
    spec = read_spec(edited("starcoder2"))
    layer = spec.layers[0]
    assert layer.attn_norm == NormSpec(1e-5, "layer", bias=True)
    assert layer.mlp == MlpSpec(12288, "gelu_tanh", bias=True, gated=False)
    assert (layer.attention.window, layer.attention.qkv_bias, spec.tie_embeddings) == (
        4096,
        True,
        True,
    )
    for silent in ("use_bias", "hidden_act", "norm_epsilon", "num_key_value_heads"):
        assert read_spec(edited("starcoder2", **{silent: ...})) == spec


def test_falcon_7b() -> None:
    spec = read_spec(edited("falcon"))
    layer = spec.layers[0]
    assert (layer.parallel, layer.mlp_norm, layer.attn_norm) == (
        True,
        None,
        NormSpec(1e-5, "layer", True),
    )
    assert (layer.attention.num_kv_heads, spec.max_positions, spec.tie_embeddings) == (
        1,
        2048,
        True,
    )
    assert layer.mlp == MlpSpec(4 * 4544, "gelu", gated=False)
    stored = Stored("transformer.h.1.self_attention.query_key_value.weight", (73 * 64, 4544))
    weights = lower(spec).weights
    assert weights["layers.1.k"].source == RowsOf(stored, ((4544, 4608),))
    assert read_spec(edited("falcon", num_kv_heads=71)) == spec
    assert read_spec(edited("falcon", hidden_size=..., n_embed=4544)) == spec


def test_falcon_40b_and_11b() -> None:
    """Rows of queries, keys and values by KV head; one or two norms."""
    spec = read_spec(FALCON_11B)
    assert (spec.layers[0].mlp_norm, spec.tie_embeddings) == (None, False)
    stored = Stored("transformer.h.0.self_attention.query_key_value.weight", (48 * 128, 4096))
    runs = tuple((768 * i + 512, 768 * i + 640) for i in range(8))
    weights = lower(spec).weights
    assert weights["layers.0.k"].source == RowsOf(stored, runs)
    assert weights["layers.0.attn_norm"].source == Stored(
        "transformer.h.0.input_layernorm.weight", (4096,)
    )
    two = read_spec({**FALCON_11B, "num_ln_in_parallel_attn": None})
    assert two.layers[0].mlp_norm == NormSpec(1e-5, "layer", bias=True)
    weights = lower(two).weights
    assert weights["layers.0.attn_norm"].source == Stored("transformer.h.0.ln_attn.weight", (4096,))
    assert weights["layers.0.mlp_norm"].source == Stored("transformer.h.0.ln_mlp.weight", (4096,))


def test_gpt2() -> None:
    spec = read_spec(edited("gpt2"))
    layer = spec.layers[1]
    assert (spec.learned_positions, spec.max_positions) == (PositionTable(1024), 1024)
    assert layer.mlp == MlpSpec(3072, "gelu_tanh", bias=True, gated=False)
    assert (layer.attention.scale, spec.tie_embeddings) == (1 / 8, True)
    weights = lower(spec).weights
    stored = Stored("transformer.h.1.attn.c_attn.weight", (768, 3 * 768))
    assert weights["layers.1.k"].source == RowsOf(Transposed(stored), ((768, 1536),))
    bias = Stored("transformer.h.1.attn.c_attn.bias", (3 * 768,))
    assert weights["layers.1.v.bias"].source == RowsOf(bias, ((1536, 2304),))
    down = Stored("transformer.h.0.mlp.c_proj.weight", (3072, 768))
    assert weights["layers.0.down"].source == Transposed(down)
    for silent in ("activation_function", "layer_norm_epsilon", "n_positions", "n_ctx"):
        assert read_spec(edited("gpt2", **{silent: ...})) == spec
    renamed = {"n_embd": ..., "hidden_size": 768, "n_layer": ..., "num_hidden_layers": 2}
    assert read_spec(edited("gpt2", **renamed)) == spec
    scaled = read_spec(edited("gpt2", scale_attn_by_inverse_layer_idx=True)).layers
    assert [each.attention.scale for each in scaled] == [1 / 8, 1 / 16]
    unscaled = read_spec(edited("gpt2", scale_attn_weights=False)).layers
    assert unscaled[1].attention.scale == 1.0


def test_gpt_bigcode() -> None:
    spec = read_spec(edited("gpt_bigcode"))
    assert spec.layers[0].attention.num_kv_heads == 1
    stored = Stored("transformer.h.1.attn.c_attn.weight", (6144 + 256, 6144))
    assert lower(spec).weights["layers.1.v"].source == RowsOf(stored, ((6272, 6400),))
    # What transformers writes of its own defaults.
    assert read_spec(edited("gpt_bigcode", num_key_value_heads=12)) == spec
    heads = read_spec(edited("gpt_bigcode", multi_query=False))
    assert heads.layers[0].attention.num_kv_heads == 48
    source = lower(heads).weights["layers.0.k"].source
    assert isinstance(source, RowsOf)
    assert source.runs[:2] == ((128, 256), (512, 640))


def test_mpt() -> None:
    spec = read_spec(edited("mpt"))
    layer = spec.layers[0]
    assert layer.attn_norm == NormSpec(1e-5, "layer")
    attention = layer.attention
    assert (attention.alibi, attention.clamp) == (AlibiSpec(), ClampSpec(6.0))
    assert attention.scale == 128**-0.5
    assert layer.mlp == MlpSpec(4 * 4096, "gelu", gated=False)
    assert (spec.max_positions, spec.tie_embeddings) == (2048, True)
    assert read_spec(edited("mpt", architectures=["MptForCausalLM"])) == spec
    silent = read_spec(edited("mpt", attn_config=...)).layers[0].attention
    assert silent == replace(attention, clamp=None)
    scaled = {**PUBLISHED["mpt"]["attn_config"], "softmax_scale": 0.25, "clip_qkv": None}
    assert read_spec(edited("mpt", attn_config=scaled)).layers[0].attention.scale == 0.25
    ffn = {"ffn_type": "mptmlp", "fc_type": "torch"}
    assert read_spec(edited("mpt", ffn_config=ffn)) == spec


def test_bloom() -> None:
    spec = read_spec(edited("bloom"))
    layer = spec.layers[0]
    assert spec.embed_norm == layer.attn_norm == NormSpec(1e-5, "layer", bias=True)
    assert (layer.attention.alibi, layer.attention.head_dim) == (AlibiSpec(), 128)
    assert (spec.hidden_size, spec.max_positions, spec.tie_embeddings) == (14336, 2048, True)
    assert read_spec(edited("bloom", n_embed=..., hidden_size=14336, seq_length=...)) == spec
    source = lower(spec).weights["layers.0.k"].source
    assert isinstance(source, RowsOf)
    assert source.runs[1] == (512, 640)


def test_opt() -> None:
    spec = read_spec(edited("opt"))
    assert spec.learned_positions == PositionTable(2050, offset=2)
    norm = NormSpec(1e-5, "layer", bias=True)
    assert (spec.final_norm, spec.layers[0].mlp) == (
        norm,
        MlpSpec(3072, "relu", bias=True, gated=False),
    )
    bare = read_spec(edited("opt", layer_norm_elementwise_affine=False))
    assert bare.final_norm == NormSpec(1e-5, "layer", weight=False)
    assert read_spec(edited("opt", _remove_final_layer_norm=True)).final_norm is None


def test_falcon_slopes() -> None:
    """The oldest ones do not rotate: scores fall with distance, and are scaled then."""
    fields = {"alibi": True, "multi_query": False, "num_attention_heads": 64, "hidden_size": 4096}
    attention = read_spec(edited("falcon", **fields)).layers[0].attention
    assert (attention.rope, attention.num_kv_heads) == (None, 64)
    assert attention.alibi == AlibiSpec(1 / 8, rounded=True)


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_falcon_beyond_the_positions_that_bfloat16_holds(backend: str) -> None:
    """Slopes, positions and their products are rounded where transformers rounds them."""
    torch = pytest.importorskip("torch", reason="transformers needs torch")
    if backend == "cpu":
        require_native()
    slopes = {"alibi": True, "num_attention_heads": 16, "hidden_size": 128}
    folder = tiny_checkpoint("falcon", **slopes, max_position_embeddings=512)
    tokens = np.random.default_rng(1).integers(0, 256, 400).tolist()
    with torch.no_grad():
        logits = load_oracle(folder)(torch.tensor([tokens])).logits[0].double()
    expected = torch.log_softmax(logits, -1)[range(399), tokens[1:]].numpy()
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
    with LLM(str(folder), dtype="float32", backend=backend, kv_cache_bytes=1 << 23) as llm:
        (output,) = llm.generate([{"prompt_token_ids": tokens}], params)
    chosen = zip(output.prompt_logprobs[1:], tokens[1:], strict=True)
    ours = [entry[token].logprob for entry, token in chosen]
    np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", ["gpt2", "gpt_bigcode", "bloom", "falcon", "mpt", "opt"])
def test_files_of_models_without_their_heads_lack_a_prefix(family: str, tmp_path: Path) -> None:
    """And GPT-2's have masks, which nobody reads."""
    from safetensors.numpy import load_file, save_file

    whole = tiny_checkpoint(family, tie_word_embeddings=True)
    prefix = "model." if family == "opt" else "transformer."
    tensors = load_file(whole / "model.safetensors")
    bare = {name.removeprefix(prefix): array for name, array in tensors.items()}
    assert bare.keys() != tensors.keys()
    if family.startswith("gpt"):
        bare["h.0.attn.bias"] = np.tril(np.ones((1, 1, 8, 8), np.float32))
    save_file(bare, tmp_path / "model.safetensors")
    spec = load_model_spec(whole)
    weights = lower(spec).weights
    expected, got = (open_weights(folder, spec, weights) for folder in (whole, tmp_path))
    for name in weights:
        np.testing.assert_array_equal(got.get(name), expected.get(name))


def test_gemma4() -> None:
    """Heads and rotations by kind of layer; the last layers read what others have cached."""
    spec = read_spec(edited("gemma4_text"))
    attentions = [layer.attention for layer in spec.layers]
    assert [a.window for a in attentions] == [512, 512, None] * 3
    assert [a.head_dim for a in attentions] == [256, 256, 512] * 3
    assert [a.kv_from for a in attentions] == [None] * 5 + [2, 4, 4, 2]
    assert attentions[0].rope == RopeSpec(1e4, 256)
    assert attentions[2].rope == RopeSpec(1e6, 512, "proportional", rotating=64)
    assert (attentions[0].scale, attentions[0].v_norm) == (1.0, NormSpec(1e-6, weight=False))
    sizes = [layer.mlp.intermediate_size for layer in spec.layers if isinstance(layer.mlp, MlpSpec)]
    assert sizes == [6144] * 5 + [12288] * 4
    inputs = spec.token_inputs
    assert inputs is not None
    assert (inputs.size, inputs.factor, inputs.vocab_size) == (256, 16.0, 262144)
    assert spec.logits_softcap == 30.0
    weights = lower(spec, max_positions=64).weights
    assert weights["layers.3.output_scale"].source == Stored("model.layers.3.layer_scalar", (1,))
    table = Stored("model.embed_tokens_per_layer.weight", (262144, 9 * 256))
    assert weights["token_inputs.embed"].source == table
    assert not {"layers.5.k", "layers.5.v", "layers.5.k_norm"} & set(weights)
    assert spec.names is not None
    assert spec.names.is_idle("model.layers.5.self_attn.k_proj.weight")
    assert spec.names.is_idle("model.language_model.layers.8.self_attn.v_norm.weight")
    assert not spec.names.is_idle("model.layers.4.self_attn.k_proj.weight")
    silent = {"layer_types": ..., "rope_parameters": ..., "head_dim": ..., "global_head_dim": ...}
    plain = read_spec(edited("gemma4_text", **silent, num_kv_shared_layers=2)).layers
    assert [layer.attention.window for layer in plain[:7]] == [512] * 5 + [None, 512]
    assert plain[-1].attention.window is None
    assert plain[-1].attention.rope == attentions[2].rope


def test_gemma4_without_values() -> None:
    fields = {"attention_k_eq_v": True, "num_global_key_value_heads": 2, "num_key_value_heads": 8}
    spec = read_spec(edited("gemma4_text", **fields, hidden_size_per_layer_input=0))
    assert spec.token_inputs is None
    assert [layer.attention.key_is_value for layer in spec.layers] == [False, False, True] * 3
    assert [layer.attention.num_kv_heads for layer in spec.layers] == [8, 8, 2] * 3
    assert "layers.2.v" not in lower(spec, max_positions=64).weights
    by_layer = {str(i): {"head_dim": 512, "num_key_value_heads": 2} for i in (2, 5, 8)}
    gone = {"global_head_dim": ..., "num_global_key_value_heads": ...}
    fields |= gone | {"per_layer_config": by_layer, "hidden_size_per_layer_input": 0}
    assert read_spec(edited("gemma4_text", **fields)) == spec


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("gemma", {"use_bidirectional_attention": True}, "only causal"),
        ("gemma", {"hidden_activation": "silu"}, "contradicts hidden_act"),
        ("gemma", {"hidden_act": "tanh"}, "hidden_act .* is not supported"),
        ("gemma", {"sliding_window": 5}, "this architecture has no windows"),
        ("gemma", {"num_key_value_heads": ...}, "num_key_value_heads .* is required"),
        ("gemma2", {"use_bidirectional_attention": True}, "only causal"),
        ("gemma2", {"sliding_window_size": 1024}, "contradicts sliding_window 4096"),
        ("gemma2", {"hidden_act": "silu"}, "contradicts hidden_activation"),
        ("gemma2", {"attn_logit_softcapping": -1.0}, "must be greater than 0"),
        ("gemma2", {"final_logit_softcapping": 0}, "must be greater than 0"),
        ("gemma2", {"layer_types": ["full_attention"] * 3}, "must be 5 times"),
        ("gemma2", {"rope_local_base_freq": 10000}, "not a field Penstock knows"),
        ("falcon", {"parallel_attn": False, "new_decoder_architecture": True}, "must be true with"),
        ("falcon", {"num_ln_in_parallel_attn": 2}, "needs new_decoder_architecture"),
        ("falcon", {"num_ln_in_parallel_attn": 3}, "from 1 to 2"),
        ("falcon", {"apply_residual_connection_post_layernorm": True}, "must be false"),
        ("falcon", {"multi_query": False, "num_kv_heads": 1}, "must be the 71 heads"),
        ("falcon", {"ff_factor": 2, "ffn_hidden_size": 9}, "contradicts ffn_hidden_size 9"),
        ("falcon", {"n_embed": 5}, "n_embed .5. contradicts hidden_size 4544"),
        ("falcon", {"activation": "relu6"}, "activation .* is not supported"),
        ("phi", {"partial_rotary_factor": 0.01}, "rotate in pairs"),
        ("phi", {"num_key_value_heads": 5}, "multiple of the 5 KV heads"),
        ("phi", {"lm_head_bias": False}, "not a field Penstock knows"),
        ("gemma4_text", {"enable_moe_block": True}, "num_experts .None. is required"),
        ("gemma4_text", {"use_bidirectional_attention": "all"}, "only causal"),
        ("gemma4_text", {"layer_types": ["sliding_attention"] * 9}, "must end with"),
        ("gemma4_text", {"num_kv_shared_layers": 9}, "from 0 to 8"),
        ("gemma4_text", {"num_kv_shared_layers": 7}, "leaves no layer"),
        ("gemma4_text", {"vocab_size_per_layer_input": 5}, "is less than the 262144 ids"),
        ("gemma4_text", {"per_layer_config": {}}, "global_head_dim .512. stands beside"),
        ("gemma4_text", {"rope_parameters": {"full_attention": {}}}, "must have 'sliding"),
        (
            "gemma4_text",
            {"global_head_dim": ..., "per_layer_config": {"2": {"head_dim": 8}}},
            "has heads of",
        ),
        (
            "gemma4_text",
            {"global_head_dim": ..., "per_layer_config": {"2": {"sliding_window": 8}}},
            "not a field Penstock knows",
        ),
        ("gpt2", {"n_embd": ...}, "n_embd .absent. is required"),
        ("gpt2", {"n_head": 5}, "not a multiple of the 5 heads"),
        ("gpt2", {"num_hidden_layers": 3}, "n_layer .2. contradicts num_hidden_layers 3"),
        ("gpt2", {"activation_function": "tanh"}, "activation_function .* is not supported"),
        ("gpt2", {"add_cross_attention": True}, "cross-attention is not supported"),
        ("gpt2", {"n_positions": 0}, "n_positions .0. must be from 1"),
        ("gpt2", {"n_inner": 2**30}, "n_inner .* must be"),
        ("gpt_bigcode", {"multi_query": 1}, "multi_query .* must be true or false"),
        ("gpt_bigcode", {"rope_theta": 1e4}, "not a field Penstock knows"),
        ("mpt", {"no_bias": False}, "no_bias .* must be true"),
        ("mpt", {"logit_scale": "inv_sqrt_d_model"}, "logit_scale .* must be null"),
        ("mpt", {"expansion_ratio": 2}, "expansion_ratio .* must be 4"),
        ("mpt", {"norm_type": "rmsnorm"}, "norm_type .* must be layernorm"),
        ("mpt", {"ffn_config": {"ffn_type": "mptgeglu"}}, "ffn_config: ffn_type .* must be mptmlp"),
        ("mpt", {"attn_config": {"alibi": False}}, "attn_config: alibi .* must be true"),
        ("mpt", {"attn_config": {"alibi_bias_max": 16}}, "alibi_bias_max .16. must be 8"),
        ("mpt", {"attn_config": {"qk_ln": True}}, "qk_ln .* must be false"),
        ("mpt", {"attn_config": {"prefix_lm": True}}, "prefix_lm .* must be false"),
        ("mpt", {"attn_config": {"attn_type": "multiquery_attention"}}, "must be multihead"),
        ("mpt", {"attn_config": {"attn_uses_sequence_id": True}}, "must be false"),
        ("mpt", {"attn_config": {"clip_qkv": -1}}, "clip_qkv .-1. must be from 0"),
        ("mpt", {"attn_config": {"kv_n_heads": 2}}, "not a field Penstock knows"),
        ("bloom", {"apply_residual_connection_post_layernorm": True}, "must be false"),
        ("bloom", {"n_inner": 5}, "n_inner .5. must be 57344"),
        ("bloom", {"n_head": 3}, "n_head .3. contradicts num_attention_heads 112"),
        ("bloom", {"hidden_size": 5}, "n_embed .14336. contradicts hidden_size 5"),
        ("opt", {"do_layer_norm_before": False}, "must be true"),
        ("opt", {"word_embed_proj_dim": 512}, "must be hidden_size"),
        ("opt", {"layer_norm_eps": 1e-6}, "not a field Penstock knows"),
        ("starcoder2", {"norm_type": "rms_norm"}, "must be layer_norm"),
        ("starcoder2", {"mlp_type": "gated"}, "must be default"),
        ("starcoder2", {"scale_attn_weights": False}, "must be true"),
        ("starcoder2", {"norm_epsilon": 0}, "norm_epsilon"),
        ("starcoder2", {"layer_types": ["full_attention"] * 3}, "must be 'sliding_attention'"),
    ],
)
def test_refused(family: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        read_spec(edited(family, **changes))
