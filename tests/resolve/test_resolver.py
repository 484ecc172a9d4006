"""The first of several mistakes in the options, in the documented order, is reported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.tiny_plans import make_spec

from penstock.cache.geometry import BLOCK_SIZE, MOST_BLOCKS
from penstock.config import EngineConfig
from penstock.errors import ConfigError
from penstock.hardware import detect
from penstock.resolve import Resolved, resolve
from penstock.scheduler.limits import check_step_limits
from penstock.speculative_config import Ngram

MISTAKES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("max_num_seqs must be at least 1", {"max_num_seqs": 0}, {"max_num_seqs": 8}),
    ("kv_cache_dtype must be", {"kv_cache_dtype": "int3"}, {"kv_cache_dtype": "int8"}),
    (
        "has no effect without quantization",
        {"quantize_activations": True},
        {"quantization": "int4"},
    ),
    ("unknown backend", {"backend": "abacus"}, {"backend": "reference"}),
    ("deterministic can be turned off", {"deterministic": False}, {"deterministic": True}),
    ("quantization_group must be", {"quantization_group": 7}, {"quantization_group": 32}),
    ("threads must be at least 1", {"threads": 0}, {"threads": 1}),
    ("is less than max_num_seqs", {"max_num_batched_tokens": 7}, {"max_num_batched_tokens": 8}),
    ("exceeds the model's", {"max_model_len": 10**6}, {"max_model_len": 64}),
    ("a KV cache of 100 bytes", {"kv_cache_bytes": 100}, {"kv_cache_bytes": 10**7}),
    ("min_match must be", {"speculative": Ngram(min_match=0)}, {"speculative": Ngram()}),
    ("artifact_dir engines has no effect", {"artifact_dir": "engines"}, {"artifact_dir": None}),
]
"""The message of each mistake, the options that make it, and those that correct it."""


def resolved(options: dict[str, Any]) -> Resolved:
    return resolve(EngineConfig(**options), detect(), make_spec(), Path("m"), Path("m"))


def test_the_first_mistake_is_reported_until_all_are_corrected() -> None:
    options: dict[str, Any] = {}
    for _, wrong, _ in MISTAKES:
        options |= wrong
    for message, _, right in MISTAKES:
        with pytest.raises(ConfigError, match=message):
            resolved(options)
        options |= right
    config = resolved(options).config
    assert list(config.reasons) == [
        "dtype",
        "backend",
        "deterministic",
        "quantization",
        "quantize_activations",
        "quantize_head",
        "quantization_calibration",
        "threads",
        "cpus",
        "max_num_seqs",
        "max_num_batched_tokens",
        "kv_cache_dtype",
        "weight_bytes",
        "kv_cache_bytes",
        "num_blocks",
        "max_model_len",
        "speculative",
        "sampling_defaults",
        "artifact_dir",
    ]


@pytest.mark.parametrize("asked", [999 * 2**40, 10**20])
def test_more_blocks_than_can_be_numbered_are_refused(asked: int) -> None:
    with pytest.raises(ConfigError, match="set kv_cache_bytes to at most") as told:
        resolved({"kv_cache_bytes": asked})
    most = int(str(told.value).rpartition(" ")[2].replace(",", ""))
    assert resolved({"kv_cache_bytes": most}).config.num_blocks == MOST_BLOCKS
    with pytest.raises(ConfigError, match="set kv_cache_bytes to at most"):
        resolved({"kv_cache_bytes": 2 * most})


@pytest.mark.parametrize(
    ("name", "most"),
    [("max_num_seqs", MOST_BLOCKS), ("max_num_batched_tokens", MOST_BLOCKS * BLOCK_SIZE)],
)
def test_step_limits_fit_32_bits(name: str, most: int) -> None:
    resolved({name: most})
    for more in (most + 1, 10**20):
        with pytest.raises(ConfigError, match=f"{name} must be at most {most:,}, not {more:,}"):
            resolved({name: more})


def test_step_limits_are_refused_in_the_scheduler_s_words() -> None:
    with pytest.raises(ConfigError) as told:
        resolved({"max_num_seqs": 8, "max_num_batched_tokens": 7})
    with pytest.raises(ConfigError) as expected:
        check_step_limits(8, 7)
    assert str(told.value) == str(expected.value)
