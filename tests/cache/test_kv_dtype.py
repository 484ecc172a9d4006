"""The type of the KV cache as an option: what it takes, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest

from penstock.cache.geometry import BLOCK_SIZE, KvDType, layer_block_bytes
from penstock.config import EngineConfig
from penstock.errors import ConfigError
from penstock.hardware import detect
from penstock.models.draft_heads import MedusaSpec
from penstock.models.spec import AttentionSpec, LayerSpec, MlpSpec, ModelSpec, NormSpec, RopeSpec
from penstock.plan.explain import explain
from penstock.plan.kv_groups import kv_layers
from penstock.plan.lower import lower
from penstock.resolve import resolve
from penstock.resolved_config import ResolvedConfig

NORM = NormSpec(eps=1e-5)


def make_spec(head_dim: int = 128, kv_heads: int = 4) -> ModelSpec:
    rope = RopeSpec(theta=1e4, dim=head_dim)
    attention = AttentionSpec(8, kv_heads, head_dim, rope, head_dim**-0.5)
    return ModelSpec(
        architecture="Tiny",
        vocab_size=211,
        hidden_size=72,
        layers=(LayerSpec(attention, MlpSpec(104), NORM, NORM),) * 3,
        final_norm=NORM,
        tie_embeddings=True,
        max_positions=1 << 20,
        dtype="bfloat16",
    )


def block_bytes(spec: ModelSpec, dtype: KvDType) -> int:
    return sum(layer.block_bytes(dtype) for layer in kv_layers(spec.layers))


def resolved(spec: ModelSpec, **options: Any) -> ResolvedConfig:
    return resolve(EngineConfig(**options), detect(), spec, Path("model"), Path("model")).config


def test_a_model_without_layers_gets_blocks_for_all_sequences_and_no_bytes() -> None:
    fields = {**vars(make_spec()), "layers": ()}
    heads = MedusaSpec(**fields, num_heads=2, num_blocks=1)
    config = resolved(heads, max_model_len=100, max_num_seqs=3)
    assert (config.num_blocks, config.kv_cache_bytes, config.max_model_len) == (12, 0, 100)
    assert config.reasons["num_blocks"] == "the model keeps no keys and values"


def test_auto_is_the_weights_type() -> None:
    spec = make_spec()
    assert resolved(spec).kv_cache_dtype == "bfloat16"
    config = resolved(spec, dtype="float32")
    assert config.kv_cache_dtype == "float32"
    assert "kv_cache_dtype          float32  (the weights' type)" in config.explain()


@pytest.mark.parametrize("dtype", get_args(KvDType))
def test_as_asked_whatever_the_weights_are(dtype: KvDType) -> None:
    spec = make_spec()
    config = resolved(spec, kv_cache_dtype=dtype, dtype="float16")
    assert (config.dtype, config.kv_cache_dtype) == ("float16", dtype)
    assert config.reasons["kv_cache_dtype"] == "as asked"
    plan = lower(spec, config.dtype, kv_dtype=config.kv_cache_dtype)
    assert (plan.weight_dtype, plan.kv_dtype) == ("float16", dtype)
    assert f"KV cache in {dtype}" in explain(plan)


@pytest.mark.parametrize(("head_dim", "times"), [(64, 1.93), (80, 1.95), (128, 1.96), (256, 1.98)])
def test_the_same_bytes_hold_nearly_twice_the_tokens(head_dim: int, times: float) -> None:
    """Two bytes in head_dim + 2 are scales."""
    spec = make_spec(head_dim)
    wide, narrow = (
        resolved(spec, kv_cache_bytes=1 << 28, kv_cache_dtype=dtype) for dtype in ("auto", "int8")
    )
    assert times < narrow.num_blocks / wide.num_blocks < 2
    assert narrow.max_model_len > times * wide.max_model_len
    assert narrow.kv_cache_bytes <= 1 << 28
    assert f"{block_bytes(spec, 'int8'):,} bytes per block" in narrow.reasons["num_blocks"]


@pytest.mark.parametrize(
    ("dtype", "head_dim", "row"),
    [
        ("float32", 50, 200),
        ("bfloat16", 50, 100),
        ("int8", 50, 54),
        ("int8", 64, 66),
        ("int4", 64, 34),
        ("fp8", 50, 52),
        ("fp8", 64, 66),
    ],
)
def test_bytes_of_a_block(dtype: KvDType, head_dim: int, row: int) -> None:
    """``row``: bytes of one head's keys of one token."""
    assert layer_block_bytes(dtype, 3, head_dim) == 2 * 3 * row * BLOCK_SIZE
    spec = make_spec(head_dim, kv_heads=2)
    assert block_bytes(spec, dtype) == len(spec.layers) * layer_block_bytes(dtype, 2, head_dim)


def test_keys_in_int8_and_values_in_int4_take_the_bytes_of_each() -> None:
    assert layer_block_bytes("k8v4", 3, 64) == 3 * (66 + 34) * BLOCK_SIZE


def test_fp8_has_two_names() -> None:
    config = resolved(make_spec(), kv_cache_dtype="fp8_e4m3")
    assert (config.kv_cache_dtype, config.reasons["kv_cache_dtype"]) == ("fp8", "as asked")


def test_layers_of_several_shapes_add_up() -> None:
    spec = make_spec(64)
    other = replace(spec.layers[0], mixer=replace(spec.layers[0].attention, head_dim=32, rope=None))
    mixed = replace(spec, layers=(spec.layers[0], other))
    assert block_bytes(mixed, "int8") == sum(layer_block_bytes("int8", 4, d) for d in (64, 32))


def test_an_unknown_type_is_refused_with_those_that_are() -> None:
    options: dict[str, Any] = {"kv_cache_dtype": "fp8_e5m2"}
    with pytest.raises(
        ConfigError,
        match="auto, int4, k8v4, int8, fp8, float32, bfloat16 or float16, not 'fp8_e5m2'",
    ):
        resolved(make_spec(), **options)
