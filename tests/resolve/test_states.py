"""The state slots that memory is divided into, beside the KV cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.state_plans import NET, state_spec

from penstock.config import EngineConfig, ResolvedConfig
from penstock.errors import ConfigError
from penstock.hardware import detect
from penstock.models.spec import ModelSpec
from penstock.plan.fuse import fuse
from penstock.plan.lower import lower
from penstock.plan.shard import shard
from penstock.resolve import resolve

SPEC = state_spec(NET, NET)
PLAN = fuse(lower(SPEC))
STATE, BLOCK = PLAN.state_bytes(log=0), PLAN.kv_groups.page_bytes


def resolved(spec: ModelSpec = SPEC, **options: Any) -> ResolvedConfig:
    config = EngineConfig(backend="reference", **options)
    return resolve(config, detect(), spec, Path("m"), Path("m")).config


def test_a_state_is_as_large_as_what_is_kept() -> None:
    """Matrices and rings in float32; of a 16-bit cache, rings in two bytes."""
    matrices, ring = 4 * 4 * 16 * 32, 3 * (2 * 32 + 128)
    assert 2 * (matrices + 4 * ring) == STATE
    assert PLAN.state_bytes(log=2) == STATE + 2 * 4 * 2 * (64 + 128 + 32 + 128 + 8)
    assert fuse(lower(SPEC, "bfloat16")).state_bytes(log=0) == 2 * (matrices + 2 * ring)
    int8 = fuse(lower(SPEC, "bfloat16", kv_dtype="int8"))
    assert int8.state_bytes(log=0) == 2 * (matrices + 2 * ring)


def test_every_sequence_has_a_state() -> None:
    config = resolved(max_num_seqs=7)
    assert config.num_states == config.max_num_seqs == 7
    assert f"num_states              7  (one for each of 7 sequences, {STATE:,} bytes" in (
        config.explain()
    )
    assert resolved(state_spec(NET, attention=False), max_num_seqs=3).num_states == 3


def test_states_take_what_keys_and_values_do_not_need() -> None:
    whole = 4 * (STATE + BLOCK)
    config = resolved(max_num_seqs=4, max_model_len=32, kv_cache_bytes=whole)
    assert (config.num_states, config.num_blocks) == (4, 4)
    config = resolved(max_num_seqs=4, max_model_len=128, kv_cache_bytes=8 * STATE)
    assert (config.num_states, config.num_blocks) == (4, 4 * STATE // BLOCK)


def test_fewer_sequences_run_where_states_would_take_more_than_half() -> None:
    config = resolved(kv_cache_bytes=10 * STATE)
    assert config.num_states == config.max_num_seqs == 5
    assert config.num_blocks == 5 * STATE // BLOCK
    assert "max_num_seqs            5  (states of as many take half" in config.explain()
    with pytest.raises(ConfigError) as told:
        resolved(kv_cache_bytes=10 * STATE, max_num_seqs=6)
    assert f"set kv_cache_bytes to at least {12 * STATE:,}, or lower max_num_seqs to at most 5" in (
        str(told.value)
    )
    with pytest.raises(ConfigError, match=f"at least {128 * STATE:,}$"):
        resolved(kv_cache_bytes=STATE)


def test_models_of_attention_alone_have_none() -> None:
    config = resolved(state_spec())
    assert config.num_states == 0
    assert "num_states" not in config.reasons
    assert config.enable_prefix_caching


def test_ranks_are_refused() -> None:
    with pytest.raises(ConfigError, match="2 ranks cannot share layers that keep a state"):
        shard(lower(SPEC), 0, 2)
