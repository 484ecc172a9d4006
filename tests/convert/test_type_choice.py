"""Which type each tensor gets. What is expected of mixtures is what ``llama-quantize --dry-run`` of
llama.cpp (build 0.3.36 of llama-cpp-python) has said of models of these shapes."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from penstock.convert.type_choice import ModelTraits, TypeChoice
from penstock.convert.types import FILE_TYPES

BOTH = ("token_embd.weight", "output.weight")


def choice(
    name: str,
    layers: int = 16,
    experts: int = 0,
    architecture: str = "llama",
    queries_per_key: int = 2,
    weighted: bool = False,
    parts: Collection[str] = ("attn_v", "ffn_down"),
    others: Collection[str] = BOTH,
) -> TypeChoice:
    names = [f"blk.{i}.{part}.weight" for i in range(layers) for part in parts]
    model = ModelTraits(architecture, layers, experts, queries_per_key, [*others, *names])
    return TypeChoice(FILE_TYPES[name], model, weighted)


def types_of(types: TypeChoice, part: str, layers: int = 16) -> list[str]:
    return [types.of(f"blk.{i}.{part}.weight", (9, 256)) for i in range(layers)]


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


def test_a_matrix_that_stays_in_the_floats_that_it_has() -> None:
    assert choice("Q4_K_M").of("per_layer_model_proj.weight", (256, 256), "BF16") == "BF16"
    assert choice("Q4_K_M").of("per_layer_model_proj.weight", (256, 256)) == "F32"


@pytest.mark.parametrize(
    ("name", "columns", "expected", "head"),
    [
        ("Q4_K_S", 512, "Q4_K", "Q6_K"),
        ("Q4_K_S", 576, "Q5_0", "Q8_0"),
        ("Q5_K_S", 576, "Q5_1", "Q8_0"),
        ("Q4_1", 576, "Q4_1", "Q8_0"),
        ("Q5_1", 512, "Q5_1", "Q6_K"),
        ("Q6_K", 576, "Q8_0", "Q8_0"),
        ("Q4_0", 576, "Q4_0", "Q8_0"),
        ("Q4_0", 512, "Q4_0", "Q6_K"),
        ("Q8_0", 512, "Q8_0", "Q8_0"),
        ("Q3_K_S", 576, "Q4_0", "Q8_0"),
        ("Q3_K_S", 512, "Q3_K", "Q6_K"),
        ("Q4_K_S", 100, "F16", "F16"),
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
    tied = choice(name, others=BOTH[:1])
    assert tied.of("token_embd.weight", shape) == head
    assert tied.of("per_layer_token_embd.weight", shape) == head


def test_a_mixture_has_more_bits_where_they_count() -> None:
    """The layers are those of llama-quantize in a model of 16."""
    more = {0, 1, 4, 7, 10, 13, 14, 15}
    for name, rest in (("Q4_K_M", "Q4_K"), ("Q5_K_M", "Q5_K")):
        expected = ["Q6_K" if i in more else rest for i in range(16)]
        assert types_of(choice(name), "attn_v") == expected
        assert types_of(choice(name), "ffn_down") == expected
        assert types_of(choice(name, experts=4), "ffn_down_exps") == expected
        assert types_of(choice(name, parts=["attn_qkv"]), "attn_qkv") == expected
        assert types_of(choice(name), "attn_k") == [rest] * 16
        assert choice(name).of("token_embd.weight", (9, 256)) == rest


def test_the_smaller_mixture_has_more_bits_in_its_first_layers() -> None:
    types = choice("Q4_K_S")
    assert types_of(types, "attn_v") == ["Q5_K"] * 4 + ["Q4_K"] * 12
    assert types_of(types, "ffn_down") == ["Q5_K"] * 2 + ["Q4_K"] * 14
    assert types_of(types, "ffn_up") == types_of(types, "attn_output") == ["Q4_K"] * 16
    assert types_of(choice("Q4_K_S", architecture="falcon"), "ffn_down") == ["Q4_K"] * 16
    for name in ("attn_v", "ffn_down", "ffn_up"):
        assert types_of(choice("Q5_K_S"), name) == ["Q5_K"] * 16


def test_layers_are_counted_among_those_that_have_the_matrix() -> None:
    names = [f"blk.{i}.attn_v.weight" for i in (3, 7, 11, 15)]
    model = ModelTraits("qwen3next", 16, 4, 2, [*BOTH, *names])
    types = TypeChoice(FILE_TYPES["Q4_K_M"], model)
    kinds = [types.of(name, (9, 256)) for name in names]
    assert kinds == ["Q4_K", "Q4_K", "Q6_K", "Q6_K"]
    names = [f"blk.{i}.ffn_down.weight" for i in (1, 3, 5)]
    types = TypeChoice(FILE_TYPES["Q4_K_M"], ModelTraits("nemotron_h", 16, 0, 2, names))
    assert [types.of(name, (9, 256)) for name in names] == ["Q6_K", "Q6_K", "Q4_K"]


@pytest.mark.parametrize(
    "name", ["Q4_0", "Q6_K", "Q8_0", "Q4_K_M", "Q4_K_S", "Q5_K_M", "Q3_K_M", "Q3_K_L", "Q2_K"]
)
def test_keys_and_values_beside_eight_experts(name: str) -> None:
    types = choice(name, experts=8)
    assert types_of(types, "attn_v") == types_of(types, "attn_k") == ["Q8_0"] * 16
    raised = name.startswith(("Q4_K", "Q3_K_M", "Q2_K"))
    output = "Q5_K" if raised else FILE_TYPES[name].matrix
    assert types_of(types, "attn_output") == [output] * 16
    assert types_of(types, "attn_q") == [FILE_TYPES[name].matrix] * 16


def test_values_of_a_model_of_70b() -> None:
    large = types_of(choice("Q4_K_M", 80), "attn_v", 80)
    assert set(large) == {"Q5_K", "Q6_K"}
    other = types_of(choice("Q4_K_M", 80, queries_per_key=1), "attn_v", 80)
    assert set(other) == {"Q4_K", "Q6_K"}
    for name in ("Q4_K_S", "Q3_K_S", "Q3_K_M", "Q3_K_L", "Q2_K"):
        assert set(types_of(choice(name, 80), "attn_v", 80)) == {"Q5_K"}


def test_falcon() -> None:
    types = choice("Q4_K_M", 32, architecture="falcon")
    kinds = types_of(types, "ffn_down", 32)
    assert (kinds[:2], kinds[2:5], kinds[31]) == (["Q6_K"] * 2, ["Q5_K", "Q5_K", "Q4_K"], "Q5_K")
    assert types.of("output.weight", (9, 256)) == "Q8_0"
    kinds = types_of(choice("Q3_K_M", 32, architecture="falcon"), "ffn_down", 32)
    assert (kinds[:2], kinds[2:5], kinds[31]) == (["Q5_K"] * 2, ["Q4_K", "Q4_K", "Q3_K"], "Q4_K")
    large = choice("Q3_K_L", architecture="falcon")
    assert types_of(large, "ffn_down") == types_of(large, "attn_output") == ["Q4_K"] * 16
    small = choice("Q2_K", architecture="falcon")
    assert types_of(small, "ffn_down") == ["Q3_K"] * 16
    assert types_of(small, "attn_output") == ["Q2_K"] * 16


def test_mixtures_of_three_bits() -> None:
    few, large = choice("Q3_K_M", 32), choice("Q3_K_L", 32)
    assert types_of(few, "attn_v", 32) == ["Q5_K"] * 2 + ["Q4_K"] * 30
    assert types_of(few, "ffn_down", 32) == ["Q5_K"] * 2 + ["Q4_K"] * 30
    assert types_of(few, "attn_output", 32) == ["Q4_K"] * 32
    for part in ("attn_v", "ffn_down", "attn_output"):
        assert types_of(large, part, 32) == ["Q5_K"] * 32
        assert types_of(choice("Q3_K_S", 32), part, 32) == ["Q3_K"] * 32
    for types in (few, large):
        assert types_of(types, "ffn_up") == types_of(types, "attn_k") == ["Q3_K"] * 16
    assert types_of(choice("Q3_K_M", 15), "ffn_down", 15) == ["Q4_K"] * 15


@pytest.mark.parametrize(("queries_per_key", "values"), [(0, "Q3_K"), (3, "Q3_K"), (4, "Q4_K")])
def test_the_mixture_of_two_bits(queries_per_key: int, values: str) -> None:
    types = choice("Q2_K", queries_per_key=queries_per_key)
    assert types_of(types, "attn_v") == [values] * 16
    assert types_of(types, "ffn_down") == types_of(types, "attn_output") == ["Q3_K"] * 16
    assert types_of(types, "attn_q") == types_of(types, "ffn_gate") == ["Q2_K"] * 16


def test_heads_that_read_one_key_are_those_of_the_first_layer() -> None:
    def queries(heads: object, keys: object = None) -> int:
        told = {"a.attention.head_count": heads, "a.attention.head_count_kv": keys}
        metadata = {name: value for name, value in told.items() if value is not None}
        return ModelTraits.of({"general.architecture": "a", **metadata}, []).queries_per_key

    assert queries(32, 8) == 4
    assert queries(32) == 1
    assert queries(32, [4, 8]) == 8
    assert queries([16, 32], [0, 8]) == 0


def test_the_first_ffn_down_where_columns_are_weighted() -> None:
    for name, more in (("Q4_0", "Q4_1"), ("Q5_0", "Q5_1")):
        weighted = choice(name, weighted=True)
        assert types_of(weighted, "ffn_down") == [more] * 2 + [name] * 14
        assert types_of(weighted, "ffn_up") == [name] * 16
        assert types_of(choice(name), "ffn_down") == [name] * 16
