"""Configurations of Gemma 3, Phi-3, Qwen3 with experts and GPT-NeoX: as published, and refused."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.checkpoints import tiny_checkpoint
from support.families import FAMILIES, PUBLISHED, edited
from support.families.phi3 import PHI4_MINI

from penstock.errors import ModelError, PenstockError
from penstock.interface.sources import OneOf, Packed, RowsOf, Shifted, Stacked, Stored
from penstock.models.registry import read_spec
from penstock.models.rope import inverse_frequencies, rope_tables
from penstock.models.spec import ExpertsSpec, MlpSpec, QkNormSpec, RopeSpec
from penstock.plan import ops
from penstock.plan.lower import lower
from penstock.quant.scheme import GridScheme, Quantization
from penstock.weights.model_folder import load_model_spec


def test_gemma3() -> None:
    spec = read_spec(PUBLISHED["gemma3"])
    windows = [layer.attention.window for layer in spec.layers]
    assert windows == [512] * 5 + [None] + [512] * 2
    local, full = spec.layers[0].attention, spec.layers[5].attention
    assert (local.rope, full.rope) == (RopeSpec(1e4, 256), RopeSpec(1e6, 256))
    assert (full.scale, full.qk_norm) == (1 / 16, QkNormSpec(1e-6))
    layer = spec.layers[0]
    norms = (layer.attn_norm, layer.attn_post_norm, layer.mlp_norm, layer.mlp_post_norm)
    assert set(norms) == {spec.final_norm}
    assert spec.embedding_scale is not None
    assert spec.embedding_scale.factor == math.sqrt(1152)
    assert (spec.tie_embeddings, spec.eos_token_ids, spec.logits_softcap) == (True, (1, 106), None)
    assert isinstance(layer.mlp, MlpSpec)
    assert layer.mlp.activation == "gelu_tanh"


def test_gemma3_in_both_styles() -> None:
    """As v5 writes it; the windows of layers by a list, a pattern, or every sixth."""
    scaled = {"rope_type": "linear", "factor": 8.0}
    old = read_spec(edited("gemma3", rope_scaling=scaled))
    kinds = ["sliding_attention"] * 5 + ["full_attention"] + ["sliding_attention"] * 2
    new = read_spec(
        edited(
            "gemma3",
            rope_theta=...,
            rope_local_base_freq=...,
            sliding_window_pattern=...,
            _sliding_window_pattern=6,
            layer_types=kinds,
            rope_parameters={
                "full_attention": {**scaled, "rope_theta": 1000000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            },
        )
    )
    assert old == new
    assert old.layers[5].attention.rope == RopeSpec(1e6, 256, "linear", 8.0)
    assert old.layers[4].attention.rope == RopeSpec(1e4, 256)
    pattern = read_spec(edited("gemma3", sliding_window_pattern=2))
    assert [layer.attention.window for layer in pattern.layers] == [512, None] * 4


def _full_layers(**fields: Any) -> list[int]:
    layers = read_spec(edited("gemma3", **fields)).layers
    return [i for i, layer in enumerate(layers) if layer.attention.window is None]


def test_gemma3_reads_the_pattern_of_windows_that_transformers_reads() -> None:
    """``_sliding_window_pattern`` is written by transformers, and read by nobody."""
    assert _full_layers(sliding_window_pattern=..., _sliding_window_pattern=2) == [5]
    assert _full_layers(sliding_window_pattern=3, _sliding_window_pattern=2) == [2, 5]
    kinds = ["full_attention"] + ["sliding_attention"] * 7
    fields = {"layer_types": kinds, "_sliding_window_pattern": 6}
    assert _full_layers(sliding_window_pattern=..., **fields) == [0]
    assert _full_layers(sliding_window_pattern=None, **fields) == [0]
    with pytest.raises(ModelError, match=r"sliding_window_pattern \(6\) contradicts layer_types"):
        _full_layers(sliding_window_pattern=6, **fields)
    agreeing = (["sliding_attention"] + ["full_attention"]) * 4
    assert _full_layers(sliding_window_pattern=2, layer_types=agreeing) == [1, 3, 5, 7]


@pytest.mark.parametrize(
    ("dtype", "factor"), [("float32", 33.941124), ("bfloat16", 34.0), ("float16", 33.9375)]
)
def test_gemma3_rounds_the_scale_of_embeddings_as_its_weights_are(
    dtype: Any, factor: float
) -> None:
    scale = next(
        op
        for op in lower(read_spec(PUBLISHED["gemma3"]), dtype, 64).ops
        if isinstance(op, ops.Scale)
    )
    assert np.float32(scale.factor) == np.float32(factor)
    assert (scale.x, scale.out) == ("x", "x")


def test_phi3() -> None:
    spec = read_spec(PUBLISHED["phi3"])
    rope = spec.layers[0].attention.rope
    assert rope is not None
    assert (rope.kind, rope.dim, rope.original_max_positions) == ("longrope", 96, 4096)
    assert rope.attention_factor == math.sqrt(1 + math.log(32) / math.log(4096))
    assert (spec.max_positions, spec.layers[0].attention.window) == (131072, 262144)
    weights = lower(spec, max_positions=64).weights
    qkv = Stored("model.layers.1.self_attn.qkv_proj.weight", (3 * 3072, 3072))
    assert weights["layers.1.k"].source == RowsOf(qkv, ((3072, 6144),))
    gate_up = Stored("model.layers.0.mlp.gate_up_proj.weight", (2 * 8192, 3072))
    assert weights["layers.0.up"].source == RowsOf(gate_up, ((8192, 16384),))


def test_phi4_mini_rotates_a_part_of_each_head() -> None:
    rope = read_spec(PHI4_MINI).layers[0].attention.rope
    assert rope is not None
    assert (rope.dim, len(rope.long_factors)) == (96, 48)
    old = {**PHI4_MINI["rope_scaling"], "type": "su"}
    assert read_spec({**PHI4_MINI, "rope_scaling": old}).layers[0].attention.rope == rope
    new = {"rope_type": "longrope", "rope_theta": 10000.0, "partial_rotary_factor": 0.75}
    new |= {name: old[name] for name in ("short_factor", "long_factor")}
    gone = ("rope_scaling", "rope_theta", "partial_rotary_factor")
    config = {k: v for k, v in PHI4_MINI.items() if k not in gone}
    assert read_spec({**config, "rope_parameters": new}).layers[0].attention.rope == rope


def test_longrope_is_chosen_by_the_context_that_is_asked_for() -> None:
    """Once for all positions, so that a cached key is right at any length of its sequence."""
    rope = RopeSpec(
        1e4, 8, "longrope", original_max_positions=32, short_factors=(1.0,) * 4,
        long_factors=(1.0, 2.0, 3.0, 4.0), attention_factor=1.25,
    )  # fmt: skip
    plain = inverse_frequencies(RopeSpec(1e4, 8))
    short_rope, long_rope = rope.for_context(32), rope.for_context(33)
    np.testing.assert_array_equal(inverse_frequencies(short_rope), plain)
    divided = plain.astype(np.float64) / rope.long_factors
    np.testing.assert_allclose(inverse_frequencies(long_rope), divided, rtol=1e-6)
    short, long = rope_tables(short_rope, 33)[0], rope_tables(long_rope, 33)[0]
    assert short[0, 0] == long[0, 0] == np.float32(1.25)
    assert not np.array_equal(short[5], long[5])
    for positions in (8, 32, 300):
        table = rope_tables(long_rope, positions)[0]
        np.testing.assert_array_equal(table[:33], long[:positions])
    with pytest.raises(ValueError, match="no list of longrope is chosen"):
        inverse_frequencies(rope)


def test_qwen3_moe() -> None:
    spec = read_spec(PUBLISHED["qwen3_moe"])
    experts = ExpertsSpec(num_experts=128, top_k=8, intermediate_size=768)
    assert [layer.mlp for layer in spec.layers] == [experts] * 3
    plan = lower(spec, max_positions=64)
    names = "model.layers.2.mlp.experts.{}.down_proj.weight"
    source = Stacked(tuple(Stored(names.format(i), (2048, 768)) for i in range(128)))
    ways = plan.weights["layers.2.experts.down"].source
    assert isinstance(ways, OneOf)
    stack = Stored("model.layers.2.mlp.experts.down_proj", (128, 2048, 768))
    assert ways.sources[:2] == (source, stack)
    assert plan.buffers["layers.0.inner"].rows == ops.Rows("T", 8)
    some = read_spec(edited("qwen3_moe", decoder_sparse_step=2, mlp_only_layers=[1]))
    assert all(isinstance(layer.mlp, MlpSpec) for layer in some.layers)
    renamed = read_spec(edited("qwen3_moe", num_experts=..., num_local_experts=128))
    assert renamed == spec


def test_experts_that_a_checkpoint_has_quantized() -> None:
    """Each matrix by itself, and not what chooses experts; stacks of them are never so."""
    form = {"quant_method": "gptq", "bits": 4}
    plan = lower(read_spec(edited("qwen3_moe", quantization_config=form)))
    up = plan.weights["layers.1.experts.up"].source
    assert isinstance(up, Stacked)
    assert len(up.sources) == 128
    assert isinstance(up.sources[3], Packed)
    assert up.sources[3].name == "model.layers.1.mlp.experts.3.up_proj"
    assert isinstance(plan.weights["layers.1.router"].source, Stored)
    with pytest.raises(ModelError, match=r"layers\.0\.experts\.gate quantized: experts are in one"):
        lower(read_spec(edited("gpt_oss", quantization_config=form)))


def test_experts_are_quantized_and_routers_are_not() -> None:
    scheme = GridScheme(4)
    plan = lower(read_spec(PUBLISHED["qwen3_moe"]), quantization=Quantization(scheme))
    experts = [op for op in plan.ops if isinstance(op, ops.ExpertLinear)]
    assert len(experts) == 2 * 3
    assert {(op.scheme, op.weight_only) for op in experts} == {(scheme, False)}
    routers = [op for op in plan.ops if isinstance(op, ops.Linear) and "router" in op.out]
    assert [op.scheme for op in routers] == [None] * 3


def test_gpt_neox() -> None:
    spec = read_spec(PUBLISHED["gpt_neox"])
    layer = spec.layers[0]
    assert layer.parallel
    assert layer.attn_norm is not None
    assert (layer.attn_norm.kind, layer.attn_norm.bias) == ("layer", True)
    assert layer.attention.rope == RopeSpec(1e4, 16)
    assert (layer.attention.qkv_bias, layer.attention.output_bias) == (True, True)
    assert layer.mlp == MlpSpec(2048, "gelu", bias=True, gated=False)
    weights = lower(spec).weights
    stored = Stored("gpt_neox.layers.3.attention.query_key_value.weight", (1536, 512))
    runs = tuple((h * 192 + 64, h * 192 + 128) for h in range(8))
    assert weights["layers.3.k"].source == RowsOf(stored, runs)
    bias = Stored("gpt_neox.layers.3.attention.query_key_value.bias", (1536,))
    assert weights["layers.3.v.bias"].source == RowsOf(
        bias, tuple((h * 192 + 128, h * 192 + 192) for h in range(8))
    )


def test_gemma3_norms_are_stored_less_1() -> None:
    weights = lower(read_spec(PUBLISHED["gemma3"]), max_positions=64).weights
    shifted = {name for name, w in weights.items() if isinstance(w.source, Shifted)}
    assert shifted == {name for name in weights if name.endswith("norm")}


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("gemma3", {"use_bidirectional_attention": True}, "only causal"),
        ("gemma3", {"attn_logit_softcapping": 50.0}, "must be null"),
        ("gemma3", {"final_logit_softcapping": -1.0}, "must be greater than 0"),
        ("gemma3", {"layer_types": ["full_attention"] * 3}, "must be 8 times"),
        ("gemma3", {"rope_parameters": {}}, "only one of them"),
        ("gemma3", {"architectures": ["Gemma3ForConditionalGeneration"]}, "is not supported"),
        (
            "gemma3",
            {"rope_theta": None, "rope_local_base_freq": ..., "sliding_window": None},
            "sliding_window .None. is required",
        ),
        ("gemma3", {"query_pre_attn_scalar": ...}, "query_pre_attn_scalar"),
        ("phi3", {"rope_scaling": {"type": "yarn", "factor": 4.0}}, "yarn.*default, longrope"),
        ("phi3", {"rope_scaling": {"type": "longrope"}}, "short_factor .* is required"),
        ("phi3", {"partial_rotary_factor": 0.5}, "each of 24 frequencies"),
        ("phi3", {"partial_rotary_factor": 0.01}, "rotate in pairs"),
        ("phi3", {"partial_rotary_factor": 1.5}, "partial_rotary_factor"),
        ("phi3", {"lm_head_bias": True}, "must be false"),
        ("qwen3_moe", {"num_experts_per_tok": 129}, "from 1 to 128"),
        ("qwen3_moe", {"num_local_experts": 64}, "contradicts num_experts"),
        ("qwen3_moe", {"num_experts": ...}, ": num_experts .absent. is required"),
        ("qwen3_moe", {"num_experts": ..., "num_local_experts": 0}, "num_local_experts .0."),
        ("qwen3_moe", {"use_sliding_window": True}, "sliding_window .* must be given"),
        ("qwen3_moe", {"shared_expert_intermediate_size": 5}, "not a field Penstock knows"),
        ("gpt_neox", {"rotary_pct": 0.0}, "rotary_pct"),
        ("gpt_neox", {"rope_theta": 5.0}, "not a field Penstock knows"),
        ("gpt_neox", {"layer_norm_eps": 0}, "layer_norm_eps"),
        ("gpt_neox", {"rope_scaling": {"type": "longrope"}}, "longrope"),
    ],
)
def test_refused(family: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        read_spec(edited(family, **changes))


@pytest.mark.parametrize("family", PUBLISHED)
def test_unknown_fields_are_refused(family: str) -> None:
    with pytest.raises(ModelError, match="not a field Penstock knows"):
        read_spec(edited(family, surprising_field=1))


@pytest.mark.thinned(3)
@pytest.mark.parametrize("family", FAMILIES)
def test_what_transformers_writes_is_read(family: str) -> None:
    spec = load_model_spec(tiny_checkpoint(family))
    assert spec.hidden_size == 64


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)
FIELDS = sorted({name for config in [*PUBLISHED.values(), PHI4_MINI] for name in config})


@settings(deadline=None, max_examples=300)
@given(
    st.sampled_from(sorted(PUBLISHED)), st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=3)
)
def test_any_change_ends_in_a_model_or_an_error(family: str, changes: dict[str, Any]) -> None:
    problem = ""
    try:
        assert read_spec(edited(family, **changes)).max_positions > 0
    except PenstockError as error:
        problem = str(error)
    assert "\n" not in problem
