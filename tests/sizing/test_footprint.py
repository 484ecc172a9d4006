"""What models take: tables that others have published, and layers of every kind."""

from __future__ import annotations

from functools import cache

import pytest
from support.sized_models import published, shape

from penstock.cache.geometry import KvDType
from penstock.plan.fuse import fuse
from penstock.plan.lower import lower
from penstock.sizing.footprint import Footprint, kv_kinds

MIB, GIB = 2**20, 2**30


@cache
def footprint(name: str, kv: KvDType = "bfloat16") -> Footprint:
    spec = published(name)
    return Footprint.of(fuse(lower(spec, kv_dtype=kv)), 512)


def token_bytes(name: str, kv: KvDType = "bfloat16") -> int:
    """Bytes of a token's keys and values in all layers, before any window has passed it."""
    spec = published(name)
    return sum(kind.token_bytes for kind in kv_kinds(spec, fuse(lower(spec, kv_dtype=kv))))


@pytest.mark.parametrize(
    ("name", "token_mib", "at_4k_gib"),
    [
        ("llama-2-7b", 0.5, 2.0),
        ("llama-2-13b", 0.78, 3.1),
        ("llama-2-70b", 0.31, 1.25),
        ("llama-3-405b", 0.49, 1.97),
    ],
)
def test_the_published_table_of_keys_and_values(
    name: str, token_mib: float, at_4k_gib: float
) -> None:
    found = footprint(name)
    assert token_bytes(name) / MIB == pytest.approx(token_mib, rel=0.02)
    for tokens in (4096, 32768, 131072):
        expected = at_4k_gib * tokens / 4096
        assert found.sequence_bytes(tokens) / GIB == pytest.approx(expected, rel=0.02)


def test_32_requests_of_4k_tokens_of_a_70b_take_40_gib() -> None:
    assert 32 * footprint("llama-2-70b").sequence_bytes(4096) == 40 * GIB
    assert footprint("llama-2-70b").weights / 1e9 == pytest.approx(138, rel=0.01)


def test_codes_take_their_bits_and_scales() -> None:
    """A component takes a byte in int8 and fp8, half of one in int4; a head's row two more."""
    rows = 80 * 8 * 2
    assert token_bytes("llama-2-70b", "int8") == rows * (128 + 2)
    assert token_bytes("llama-2-70b", "fp8") == rows * (128 + 2)
    assert token_bytes("llama-2-70b", "int4") == rows * (64 + 2)


def test_kinds_of_layers_are_told_apart() -> None:
    gemma, youtu = shape("gemma-3-1b"), shape("youtu-llm-2b")
    windowed, whole = kv_kinds(gemma, fuse(lower(gemma)))
    assert "MQA" in windowed.name
    assert windowed.window == 512
    assert whole.window is None
    assert windowed.layers + whole.layers == len(gemma.layers)
    (latents,) = kv_kinds(youtu, fuse(lower(youtu)))
    assert latents.name.startswith("MLA, latents of 512 + 64")
    assert latents.token_bytes == len(youtu.layers) * 576 * 2


def test_windows_bound_a_sequence() -> None:
    spec = shape("gemma-3-1b")
    plan = fuse(lower(spec))
    found, kinds = Footprint.of(plan, 512), kv_kinds(spec, plan)
    grown = found.sequence_bytes(16384) - found.sequence_bytes(8192)
    whole = next(kind for kind in kinds if kind.window is None)
    every = sum(kind.token_bytes for kind in kinds)
    # What grows is layers without a window, and pages that these do not fill.
    assert whole.token_bytes * 8192 <= grown < every * 8192 / 4
