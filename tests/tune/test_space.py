"""The space: which values options may have, and that answers stay as exact as they are."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from penstock.config import EngineConfig
from penstock.engine.loader import plan_engine
from penstock.errors import ConfigError
from penstock.profile import ProfileOptions
from penstock.resolved_config import ResolvedConfig
from penstock.tune.space import Candidate, Space, check_names


@pytest.fixture(scope="module")
def resolved() -> ResolvedConfig:
    return plan_engine(EngineConfig(backend="cpu")).config


def space_of(resolved: ResolvedConfig, free: int = 0, **options: Any) -> Space:
    allowed, kept = options.pop("allowed", ()), options.pop("kept", ())
    default = Candidate(EngineConfig(**options), 1024)
    return Space.of(default, resolved, free, allowed, kept, shared=True)


def values(space: Space, option: str) -> tuple[Any, ...]:
    return next((each.values for each in space.dimensions if each.option == option), ())


def test_what_is_decided_otherwise_is_among_the_values(resolved: ResolvedConfig) -> None:
    space = space_of(resolved)
    assert values(space, "max_num_seqs") == (2, 4, 8, 16, 32, None, 128, 256)
    assert values(space, "max_num_batched_tokens") == (32, 64, 128, 256, None, 1024, 2048)
    assert values(space, "max_waiting")[-1] == 1024
    assert values(space, "kv_cache_bytes") == ()
    assert space.size == 8 * 7 * 10
    assert space.named(space.default) == "default"
    fewer = space.default.having("max_num_seqs", 4).having("max_waiting", 8)
    assert space.named(fewer) == "max_num_seqs=4,max_waiting=8"
    assert fewer.options(1024) == ProfileOptions(max_num_seqs=4, max_waiting=8)
    assert [each.engine.max_num_seqs for each in space.neighbours(fewer, space.dimensions[0])] == [
        2,
        8,
    ]


@pytest.mark.parametrize(
    ("options", "weights", "kv"),
    [
        ({}, (), ()),
        ({"quantization": "int8"}, ("none", "int8"), ()),
        ({"kv_cache_dtype": "int8"}, (), ("auto", "int8")),
        ({"allowed": ("int4", "kv:fp8")}, ("none", "int4"), ("auto", "fp8")),
        ({"quantization": "int8", "allowed": ("int4",)}, ("none", "int8", "int4"), ()),
        ({"kv_cache_dtype": "float32"}, (), ()),
        ({"quantization": "int8", "kept": ("quantization",)}, (), ()),
    ],
)
def test_types_are_as_exact_unless_allowed(
    resolved: ResolvedConfig, options: dict[str, Any], weights: tuple[str], kv: tuple[str]
) -> None:
    space = space_of(resolved, **options)
    assert values(space, "quantization") == weights
    assert values(space, "kv_cache_dtype") == kv


def test_the_cache_grows_within_the_memory(resolved: ResolvedConfig) -> None:
    usual = resolved.kv_cache_bytes
    assert values(space_of(resolved, free=6 * usual), "kv_cache_bytes") == (
        None,
        usual * 3 // 2,
        2 * usual,
        4 * usual,
    )


def test_a_cache_that_holds_all_sequences_need_not_grow(resolved: ResolvedConfig) -> None:
    default = Candidate(EngineConfig(), 1024)
    free = 8 * resolved.kv_cache_bytes
    assert values(Space.of(default, resolved, free), "kv_cache_bytes") == ()
    few = msgspec.structs.replace(resolved, num_blocks=resolved.num_blocks // 2)
    assert len(values(Space.of(default, few, free), "kv_cache_bytes")) == 4


def test_names_that_are_none() -> None:
    check_names(("int8", "kv:int4"), ("max_waiting",))
    with pytest.raises(ConfigError, match="--allow int3: it is one of int8, int4, kv:int8"):
        check_names(("int3",), ())
    with pytest.raises(ConfigError, match="--keep seqs: it is one of max_num_seqs"):
        check_names((), ("seqs",))
