"""How much memory windows leave: blocks, bytes and lengths as the engine decides them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.tiny_plans import make_spec

from penstock.cache.geometry import sequence_blocks
from penstock.cache.kv_cache import KvCache
from penstock.config import EngineConfig
from penstock.errors import ConfigError, RequestError
from penstock.hardware import detect
from penstock.length_limits import LengthLimits
from penstock.models.spec import ModelSpec
from penstock.plan.kv_groups import group_layers, kv_layers
from penstock.resolve import draft_block_bytes, resolve
from penstock.resolved_config import ResolvedConfig
from penstock.sampling.params import SamplingParams
from penstock.scheduler.limits import most_tokens

PAGE = 2 * 2 * 16 * 4 * 32
"""A block of one of the layers: keys and values of two heads of 16 in float32."""


def spec_of(*windows: int | None, positions: int = 32_768) -> ModelSpec:
    spec = make_spec()
    base = spec.layers[0]
    layers = tuple(
        replace(base, mixer=replace(base.attention, window=window)) for window in windows
    )
    return replace(spec, layers=layers, max_positions=positions)


def resolved(spec: ModelSpec, **options: Any) -> ResolvedConfig:
    options = {"max_num_seqs": 2, "max_num_batched_tokens": 256} | options
    return resolve(EngineConfig(**options), detect(), spec, Path("m"), Path("m")).config


def test_all_sequences_take_their_windows_and_what_a_step_writes() -> None:
    full = resolved(spec_of(None, None))
    assert (full.num_blocks, full.kv_cache_bytes) == (2 * 1024, 2 * 1024 * 2 * PAGE)
    mixed = resolved(spec_of(None, *[512] * 5))
    assert mixed.num_blocks == 2 * (1024 + 5 * 17) + 5 * 8
    assert mixed.kv_cache_bytes == mixed.num_blocks * PAGE
    assert mixed.reasons["num_blocks"] == (
        f"{PAGE:,} bytes per block of 32 tokens, of one of 6 groups of layers"
    )
    windowed = resolved(spec_of(512, 512))
    assert windowed.num_blocks == 2 * 17 + 8
    assert windowed.max_model_len == 32_768


def test_the_length_is_what_one_sequence_can_fill() -> None:
    spec = spec_of(None, *[512] * 5)
    config = resolved(spec, kv_cache_bytes=(100 + 5 * 17) * PAGE)
    assert (config.num_blocks, config.max_model_len) == (185, 3200)
    assert config.reasons["max_model_len"] == "what the KV cache holds"
    short = resolved(spec, kv_cache_bytes=23 * PAGE)  # of three blocks in each group, and of five
    assert short.max_model_len == 96
    words = r"holds 185 blocks .*, which 6 groups of layers share, 3200 tokens, .* need 3201; set"
    with pytest.raises(ConfigError, match=words):
        resolved(spec, kv_cache_bytes=185 * PAGE, max_model_len=3201)
    with pytest.raises(ConfigError, match=r"bytes each\), 3200 tokens, .* need 3201; set"):
        resolved(spec_of(None), kv_cache_bytes=100 * PAGE, max_model_len=3201)
    needed = (101 + 5 * 17) * PAGE
    assert resolved(spec, kv_cache_bytes=needed, max_model_len=3201).max_model_len == 3201


def test_a_request_is_refused_by_what_it_keeps() -> None:
    cache = KvCache(185, 32, windows=(None, *[512] * 5))
    params = SamplingParams(max_tokens=101)
    assert most_tokens(3100, params, LengthLimits(32_768), cache) == 3201
    with pytest.raises(RequestError, match="need 186 cache blocks of 32 tokens, and there are 185"):
        most_tokens(3101, params, LengthLimits(32_768), cache)


@pytest.mark.parametrize(
    ("target", "draft", "blocks"),
    [
        ((None, None), (None,), 1),
        ((None, *[512] * 5), (None,), 1),
        ((512, 512), (None,), 1024 // 17 + 1),
        ((None,), (None, 64, 64), 3),
        # Worst where the draft's windows are full, long before the longest sequence.
        ((None, *[64] * 4), (64, *[3200] * 4), 4),
    ],
)
def test_a_draft_follows_a_sequence_as_far_as_its_target(
    target: tuple[int | None, ...], draft: tuple[int | None, ...], blocks: int
) -> None:
    groups = group_layers(kv_layers(spec_of(*target).layers), "float32")
    spec, config = spec_of(*draft), EngineConfig(dtype="float32")
    own = group_layers(kv_layers(spec.layers), "float32")
    assert draft_block_bytes(config, spec, groups, 32_768) == blocks * own.page_bytes
    for tokens in (*range(1, 6000, 31), 32_768):
        held = sequence_blocks(groups.windows, tokens) * blocks
        assert sequence_blocks(own.windows, tokens) <= held
