"""The state slots that memory is divided into, beside the KV cache."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from support.state_plans import NET, SCAN, StateWeights, state_spec

from penstock.backends.cpu.bind import bind
from penstock.config import BackendName, EngineConfig
from penstock.errors import ConfigError
from penstock.hardware import detect
from penstock.interface.executor import Limits
from penstock.models.spec import GatedDeltaSpec, ModelSpec
from penstock.plan.fuse import fuse
from penstock.plan.lower import lower
from penstock.resolve import resolve
from penstock.resolved_config import ResolvedConfig
from penstock.speculative_config import Ngram

SPEC = state_spec(NET, NET)
PLAN = fuse(lower(SPEC))
STATE, BLOCK = PLAN.state_bytes(log=1), PLAN.kv_groups.page_bytes


def resolved(
    spec: ModelSpec = SPEC, backend: BackendName = "reference", **options: Any
) -> ResolvedConfig:
    config = EngineConfig(backend=backend, **options)
    return resolve(config, detect(), spec, Path("m"), Path("m")).config


def test_a_state_is_as_large_as_what_is_kept() -> None:
    """Matrices and rings in float32; of a 16-bit cache, rings in two bytes."""
    matrices, ring = 4 * 4 * 16 * 32, 3 * (2 * 32 + 128)
    assert PLAN.state_bytes(log=0) == 2 * (matrices + 4 * ring)
    row = 4 * (64 + 128) + 4 * (32 + 128 + 8)  # of a ring, and of a log
    assert PLAN.state_bytes(log=2) - PLAN.state_bytes(log=0) == 2 * 2 * row
    assert fuse(lower(SPEC, "bfloat16")).state_bytes(log=0) == 2 * (matrices + 2 * ring)
    int8 = fuse(lower(SPEC, "bfloat16", kv_dtype="int8"))
    assert int8.state_bytes(log=0) == 2 * (matrices + 2 * ring)


def test_every_sequence_has_a_state() -> None:
    config = resolved(max_num_seqs=7, enable_prefix_caching=False)
    assert config.num_states == config.max_num_seqs == 7
    assert config.reasons["num_states"] == f"one for each of 7 sequences, {STATE:,} bytes each"
    alone = state_spec(NET, attention=False)
    assert resolved(alone, max_num_seqs=3, enable_prefix_caching=False).num_states == 3


def test_states_of_prefixes_are_kept_beside_them() -> None:
    """Four for each sequence: within half of what is left and beside one whole sequence, or beside
    all of them."""
    config = resolved(max_num_seqs=7)
    assert (config.num_states, config.max_num_seqs) == (35, 7)
    assert config.reasons["num_states"] == (
        f"one for each of 7 sequences, and 28 for prefixes, {STATE:,} bytes each"
    )
    config = resolved(max_num_seqs=2, max_model_len=512, kv_cache_bytes=16 * STATE)
    assert config.num_states == 2 + 7
    assert config.num_blocks == 7 * STATE // BLOCK
    config = resolved(max_num_seqs=2, max_model_len=32, kv_cache_bytes=8 * STATE + 2 * BLOCK)
    assert (config.num_states, config.num_blocks) == (2 + 6, 2)
    assert config.reasons["kv_cache_bytes"] == f"as asked, less {8 * STATE:,} of states"
    config = resolved(max_num_seqs=2, max_model_len=512, kv_cache_bytes=3 * STATE + 16 * BLOCK)
    assert config.num_states == 2 + 1
    assert config.max_model_len == 512
    assert resolved(state_spec(NET, attention=False), max_num_seqs=3).num_states == 3 + 12


def test_states_take_what_keys_and_values_do_not_need() -> None:
    whole = 4 * (STATE + BLOCK)
    short = {"max_num_seqs": 4, "max_model_len": 32, "enable_prefix_caching": False}
    config = resolved(kv_cache_bytes=whole, **short)
    assert (config.num_states, config.num_blocks) == (4, 4)
    short["max_model_len"] = 128
    config = resolved(kv_cache_bytes=8 * STATE, **short)
    assert (config.num_states, config.num_blocks) == (4, 4 * STATE // BLOCK)


def test_fewer_sequences_run_where_states_would_take_more_than_half() -> None:
    config = resolved(kv_cache_bytes=10 * STATE, enable_prefix_caching=False)
    assert config.num_states == config.max_num_seqs == 5
    assert config.num_blocks == 5 * STATE // BLOCK
    assert config.reasons["max_num_seqs"].startswith("states of as many take half")
    with pytest.raises(ConfigError) as told:
        resolved(kv_cache_bytes=10 * STATE, max_num_seqs=6)
    assert f"set kv_cache_bytes to at least {12 * STATE:,}, or lower max_num_seqs to at most 5" in (
        str(told.value)
    )
    with pytest.raises(ConfigError, match=f"at least {128 * STATE:,}$"):
        resolved(kv_cache_bytes=STATE)


def test_the_memory_that_a_refusal_names_suffices() -> None:
    """More of it lets more sequences run, whose states take some of it."""
    asked = {"max_model_len": 512, "enable_prefix_caching": False}
    with pytest.raises(ConfigError) as told:
        resolved(kv_cache_bytes=2 * STATE, **asked)
    named = re.search(r"kv_cache_bytes to at least ([\d,]+)", str(told.value))
    assert named is not None
    config = resolved(kv_cache_bytes=int(named[1].replace(",", "")), **asked)
    assert config.max_model_len == 512


@pytest.mark.parametrize("sequences", [1, 3, 8])
@pytest.mark.parametrize("max_model_len", [32, 64, 480])
@pytest.mark.parametrize("attention", [True, False])
def test_what_states_are_said_to_need_is_enough_and_no_less(
    sequences: int, max_model_len: int, attention: bool
) -> None:
    """The message counts the keys and values of one request, too."""
    spec = SPEC if attention else state_spec(NET, NET, attention=False)
    asked: dict[str, Any] = {"max_num_seqs": sequences, "max_model_len": max_model_len}
    with pytest.raises(ConfigError, match="the states of") as told:
        resolved(spec, kv_cache_bytes=1, **asked)
    said = re.search(r"kv_cache_bytes to at least ([0-9,]+)", str(told.value))
    assert said is not None
    needed = int(said[1].replace(",", ""))
    assert resolved(spec, kv_cache_bytes=needed, **asked).max_num_seqs == sequences
    with pytest.raises(ConfigError):
        resolved(spec, kv_cache_bytes=needed - 1, **asked)


def test_drafts_make_a_state_larger() -> None:
    """It grows by what is logged of each draft, to be taken back."""
    config = resolved(max_num_seqs=2, speculative=Ngram(num_tokens=3), enable_prefix_caching=False)
    assert config.state_log == 4
    assert f"{PLAN.state_bytes(log=4):,} bytes each" in config.reasons["num_states"]


def test_models_of_attention_alone_have_none() -> None:
    config = resolved(state_spec())
    assert config.num_states == 0
    assert "num_states" not in config.reasons


@pytest.mark.parametrize("drafts", [0, 3])
def test_states_are_budgeted_as_the_backend_lays_them_out(drafts: int) -> None:
    """Columns of a state are filled up to those of a tile on a CPU, and parts to cache lines."""
    spec = state_spec(GatedDeltaSpec(1, 2, key_dim=5, value_dim=17, kernel=3, eps=1e-6), SCAN)
    speculative = Ngram(num_tokens=drafts) if drafts else None
    options: dict[str, Any] = {"max_num_seqs": 3, "speculative": speculative}
    told = resolved(spec, "cpu", **options)
    plan = fuse(lower(spec))
    limits = Limits(1, 4, 4, 2, threads=1, num_states=2, state_log=told.state_log)
    executor = bind(plan, StateWeights(plan), limits)
    try:
        allocated = executor._native.state_copy(0).nbytes
    finally:
        executor.close()
    assert told.state_bytes == allocated > plan.state_bytes(1 + drafts)
    assert f"{told.state_bytes:,} bytes each" in told.reasons["num_states"]
    assert resolved(spec, "reference", **options).state_bytes == plan.state_bytes(1 + drafts)
    asked = {"max_num_seqs": 2, "kv_cache_bytes": 8 * told.state_bytes}
    config = resolved(spec, "cpu", enable_prefix_caching=False, **asked)
    assert config.kv_cache_bytes + 2 * config.state_bytes <= 8 * told.state_bytes
