"""Which type each tensor gets."""

from __future__ import annotations

import pytest

from penstock.convert.types import FILE_TYPES, TypeChoice, file_type
from penstock.errors import ConfigError


def choice(name: str, layers: int = 16, experts: int = 0, tied: bool = False) -> TypeChoice:
    return TypeChoice(FILE_TYPES[name], layers, experts, tied)


def test_names() -> None:
    assert file_type("q4_k_m") is file_type("Q4-K-M") is FILE_TYPES["Q4_K_M"]
    with pytest.raises(ConfigError, match=r"'q3_k' is not written; .*Q4_K_M.*Q4_0"):
        file_type("q3_k")


@pytest.mark.parametrize("name", FILE_TYPES)
def test_what_is_small_stays_in_float32(name: str) -> None:
    types = choice(name)
    for tensor in (
        "blk.0.attn_norm.weight",
        "blk.0.ffn_gate_inp.weight",
        "output_norm.weight",
        "blk.3.attn_q_norm.weight",
        "blk.3.attn_q.bias",
    ):
        assert types.of(tensor, (256, 256)) == "F32"
    assert types.of("blk.3.attn_q.weight", (256,)) == "F32"
    assert types.of("blk.3.attn_q.weight", (256, 256)) == FILE_TYPES[name].matrix


@pytest.mark.parametrize(
    ("name", "columns", "expected", "head"),
    [
        ("Q4_K", 512, "Q4_K", "Q6_K"),
        ("Q4_K", 576, "Q5_0", "Q8_0"),
        ("Q5_K", 576, "Q5_1", "Q8_0"),
        ("Q6_K", 576, "Q8_0", "Q8_0"),
        ("Q4_0", 576, "Q4_0", "Q8_0"),
        ("Q4_0", 512, "Q4_0", "Q6_K"),
        ("Q8_0", 512, "Q8_0", "Q8_0"),
        ("Q4_K", 100, "F16", "F16"),
        ("Q8_0", 100, "F16", "F16"),
        ("BF16", 100, "BF16", "BF16"),
        ("F32", 100, "F32", "F32"),
    ],
)
def test_columns(name: str, columns: int, expected: str, head: str) -> None:
    shape = (64, columns)
    assert choice(name).of("blk.0.ffn_up.weight", shape) == expected
    assert choice(name).of("token_embd.weight", shape) == expected
    assert choice(name).of("output.weight", shape) == head
    assert choice(name, tied=True).of("token_embd.weight", shape) == head


def test_a_mixture_has_more_bits_where_they_count() -> None:
    """The layers are those of llama-quantize in a model of 16."""
    more = {0, 1, 4, 7, 10, 13, 14, 15}
    for name, rest in (("Q4_K_M", "Q4_K"), ("Q5_K_M", "Q5_K")):
        types = choice(name)
        for part in ("attn_v", "ffn_down", "ffn_down_exps"):
            found = {i for i in range(16) if types.of(f"blk.{i}.{part}.weight", (9, 256)) == "Q6_K"}
            assert found == more, part
        assert types.of("blk.0.attn_k.weight", (9, 256)) == rest
        assert types.of("token_embd.weight", (9, 256)) == rest
    assert choice("Q4_K_M").of("blk.2.attn_qkv.weight", (9, 256)) == "Q5_K"
    assert choice("Q4_K_M", experts=8).of("blk.2.attn_v.weight", (9, 256)) == "Q8_0"
    assert choice("Q4_K").of("blk.0.ffn_down.weight", (9, 256)) == "Q4_K"


def test_the_first_ffn_down_where_columns_are_weighted() -> None:
    for name, more in (("Q4_0", "Q4_1"), ("Q5_0", "Q5_1")):
        weighted = TypeChoice(FILE_TYPES[name], 16, 0, tied=False, weighted=True)
        kinds = [weighted.of(f"blk.{i}.ffn_down.weight", (9, 256)) for i in range(16)]
        assert kinds == [more] * 2 + [name] * 14
        assert weighted.of("blk.0.ffn_up.weight", (9, 256)) == name
        assert choice(name).of("blk.0.ffn_down.weight", (9, 256)) == name
