"""How long requests may be, and what follows from it for memory and the number of sequences."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.tiny_plans import make_spec

from penstock.cache.geometry import BLOCK_SIZE
from penstock.config import EngineConfig
from penstock.errors import ConfigError, ContextLengthError
from penstock.hardware import detect
from penstock.interface.request_checks import check_length, truncated
from penstock.length_limits import LengthLimits
from penstock.resolve import Resolved, resolve
from penstock.sampling.params import SamplingParams

SPEC = replace(make_spec(), max_positions=4096)


def resolved(**options: Any) -> Resolved:
    config = EngineConfig(backend="reference", **options)
    return resolve(config, detect(), SPEC, Path("m"), Path("m"))


def test_memory_is_that_of_the_longest_request() -> None:
    bound, free = resolved(max_input_len=100, max_output_len=60), resolved()
    assert bound.config.max_model_len == bound.plan.max_positions == 160
    assert bound.config.num_blocks == 64 * 5
    assert free.config.num_blocks > 10 * bound.config.num_blocks
    assert bound.plan.ops == free.plan.ops
    assert bound.config.reasons["max_input_len"] == "as asked"
    # A context that is asked for need not be shorter than what requests may have together.
    same = resolved(max_input_len=100, max_output_len=60, max_model_len=4000)
    assert same.config.num_blocks == bound.config.num_blocks


def test_one_bound_leaves_the_context_as_it_is() -> None:
    config = resolved(max_input_len=100).config
    assert config.max_model_len == SPEC.max_positions
    assert (config.lengths.longest_prompt, config.lengths.room(100)) == (100, 3996)
    config = resolved(max_output_len=60).config
    assert (config.lengths.longest_prompt, config.lengths.room(4090)) == (4095, 6)


def test_what_the_cache_holds_to_the_end_is_said() -> None:
    page = resolved().plan.kv_groups.page_bytes
    bounds = {"max_input_len": 100, "max_output_len": 60}  # five blocks
    config = resolved(kv_cache_bytes=23 * page, **bounds).config
    assert "they hold 4 sequences of 160 tokens to their ends" in config.reasons["num_blocks"]
    assert config.max_num_seqs == 64
    assert config.lengths.bounded
    assert not resolved(max_model_len=160, max_input_len=100).config.lengths.bounded
    with pytest.raises(ConfigError, match="lower max_input_len or max_output_len"):
        resolved(kv_cache_bytes=4 * page, **bounds)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_input_len": 0}, "max_input_len must be at least 1"),
        ({"max_output_len": -1}, "max_output_len must be at least 1"),
        ({"max_input_len": 4096}, "together 4097, and the context .max_model_len. holds 4096"),
        ({"max_input_len": 50, "max_output_len": 51, "max_model_len": 100}, "together 101"),
    ],
)
def test_bounds_that_no_request_has(options: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolved(**options)


def test_requests_beyond_are_refused_by_name_and_origin() -> None:
    limits = LengthLimits(BLOCK_SIZE * 10, 100, 60, "which X was built with")
    check_length(100, SamplingParams(max_tokens=60), limits)
    check_length(100, SamplingParams(max_tokens=None), limits)
    for prompt, tokens, words in (
        (101, 1, r"prompts may have 100 here \(max_input_len, which X was built with\); shorten"),
        (100, 61, r"answers may have 60 here \(max_output_len, which X was built with\); lower it"),
    ):
        with pytest.raises(ContextLengthError, match=words):
            check_length(prompt, SamplingParams(max_tokens=tokens), limits)
    with pytest.raises(ContextLengthError, match="max_input_len"):
        check_length(101, None, limits)
    with pytest.raises(ContextLengthError, match="max_output_len"):
        check_length(1, SamplingParams(max_tokens=None, min_tokens=61), limits)
    cut = SamplingParams(max_tokens=20, truncate_prompt_tokens=-1)
    assert len(truncated([1] * 900, cut, limits)) == 100
