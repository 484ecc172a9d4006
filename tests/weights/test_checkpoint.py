"""Weights by canonical name: complete for every family, checked, and converted as asked."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from support.checkpoints import LLAMA_SHAPED, load_oracle, tiny_checkpoint

from penstock.errors import WeightError
from penstock.interface.plan_weights import PlanWeight, Share
from penstock.interface.source_walks import tensors
from penstock.interface.sources import Packed, RowsOf, Source, Stored
from penstock.interface.weights import WeightSource
from penstock.models.names import own_names
from penstock.models.row_codebooks import RowCodebooks
from penstock.models.spec import DType
from penstock.plan.lower import lower
from penstock.quant import CodebookMatrix
from penstock.weights.cast import cast
from penstock.weights.checkpoint import open_weights
from penstock.weights.dummy import DummyWeights
from penstock.weights.model_folder import load_model_spec
from penstock.weights.safetensors import SINGLE
from penstock.weights.tensor_file import NUMPY_DTYPES

Tensors = dict[str, Any]


def only_tensor(source: Source) -> str:
    (tensor,) = tensors(source)
    return tensor.name


def opened(folder: Path, *options: Any) -> WeightSource:
    spec = load_model_spec(folder)
    return open_weights(folder, spec, lower(spec).weights, *options)


@pytest.mark.parametrize("shard_bytes", [None, 40_000])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("family", LLAMA_SHAPED)
def test_every_parameter_is_found(family: str, tied: bool, shard_bytes: int | None) -> None:
    biases = {"attention_bias": True} if family in ("llama", "qwen3") else {}
    folder = tiny_checkpoint(family, tie_word_embeddings=tied, shard_bytes=shard_bytes, **biases)
    assert (folder / SINGLE).exists() is (shard_bytes is None)
    spec = load_model_spec(folder)
    declared = lower(spec).weights
    weights = open_weights(folder, spec, declared)
    parameters = dict(load_oracle(folder).named_parameters())
    assert list(weights.names()) == list(declared)
    stored = {name: only_tensor(weight.source) for name, weight in declared.items()}
    assert sorted(stored.values()) == sorted(parameters)
    for name in declared:
        array = weights.get(name)
        assert array.shape == declared[name].shape
        np.testing.assert_array_equal(array, parameters[stored[name]].detach().numpy())


@pytest.mark.parametrize("stored", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("wanted", ["auto", "float32", "bfloat16", "float16"])
def test_dtypes(stored: DType, wanted: Any) -> None:
    folder = tiny_checkpoint("llama", dtype=stored)
    spec = load_model_spec(folder)
    assert spec.dtype == stored
    array = opened(folder, wanted).get("layers.1.down")
    expected = NUMPY_DTYPES[stored if wanted == "auto" else wanted]
    assert array.dtype == expected
    original = load_file(folder / SINGLE)["model.layers.1.mlp.down_proj.weight"]
    np.testing.assert_array_equal(array, original.astype(expected))


def test_conversion_rounds_to_nearest_even() -> None:
    # Halfway cases: to the even neighbour below, and above; then just past halfway.
    bits = np.array([0x3F808000, 0x3F818000, 0x3F808001], np.uint32).view(np.float32)
    rounded = cast(bits, "bfloat16", "x").view(np.uint16)
    assert rounded.tolist() == [0x3F80, 0x3F82, 0x3F81]
    half = np.array([1 + 2**-11, 1 + 3 * 2**-11], np.float32)
    assert cast(half, "float16", "x").tolist() == [1.0, 1 + 2**-9]


@pytest.mark.parametrize("source", [np.float32, ml_dtypes.bfloat16])
def test_overflow_is_an_error(source: Any) -> None:
    array = np.array([1.0, -70000.0], source)
    with pytest.raises(WeightError, match=r"'some\.tensor' has values up to .*e\+04.*float16"):
        cast(array, "float16", "some.tensor")
    assert cast(array, "float32", "x").dtype == np.float32
    # Infinities that were there already stay.
    assert np.isinf(cast(np.array([np.inf], source), "float16", "x")).all()


def test_overflow_to_bfloat16() -> None:
    with pytest.raises(WeightError, match="bfloat16"):
        cast(np.array([np.finfo(np.float32).max], np.float32), "bfloat16", "x")


def edit(
    tmp_path: Path, change: Callable[[Tensors], object], family: str = "llama", **o: Any
) -> Path:
    """A copy of a tiny checkpoint whose tensors ``change`` has edited in place."""
    folder = tmp_path / "model"
    shutil.copytree(tiny_checkpoint(family, **o), folder)
    tensors = {name: array.copy() for name, array in load_file(folder / SINGLE).items()}
    change(tensors)
    save_file(tensors, folder / SINGLE)
    return folder


Q = "model.layers.1.self_attn.q_proj.weight"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop(Q), f"lacks tensor '{Q}'"),
        (lambda t: t.pop("lm_head.weight"), "tie_word_embeddings to true"),
        (lambda t: t.update({Q: t[Q][:-1].copy()}), r"shape \[63, 64\].*asks for \[64, 64\]"),
        (lambda t: t.update({Q: t[Q].reshape(-1)}), r"shape \[4096\]"),
        (lambda t: t.update({Q: t[Q].astype(np.int8)}), "stored as I8; quantized"),
        (lambda t: t.update({Q: t[Q].astype(ml_dtypes.float8_e4m3fn)}), "F8_E4M3; quantized"),
        (lambda t: t.update({Q: t[Q].astype(np.float64)}), "F64, but it is read in F32, BF16 or"),
        (lambda t: t.update({Q: t[Q].astype(np.int32)}), "I32, but it is read in F32, BF16 or"),
        (lambda t: t.update({Q: t[Q] > 0}), "BOOL, but it is read in F32, BF16 or"),
        (lambda t: t.update({Q.replace("weight", "bias"): t[Q][0].copy()}), "no place"),
        (lambda t: t.update({Q.replace("1", "2", 1): t[Q]}), "no place in the model"),
        (lambda t: t.update({Q + "_scale": t[Q][0].copy()}), "quantized checkpoints"),
        (
            lambda t: t.update({Q.replace("weight", "qweight"): t.pop(Q).astype(np.int32)}),
            "qweight': quantized checkpoints",
        ),
    ],
)
def test_disagreement(tmp_path: Path, change: Callable[[Tensors], object], message: str) -> None:
    folder = edit(tmp_path, change)
    with pytest.raises(WeightError, match=message) as caught:
        opened(folder)
    assert str(folder) in str(caught.value)


@pytest.mark.parametrize("prefix", ["language_model.", "model.language_model."])
def test_a_language_model_inside_another_is_named(tmp_path: Path, prefix: str) -> None:
    folder = shutil.copytree(tiny_checkpoint("gemma3"), tmp_path / "model")
    tensors = load_file(folder / SINGLE)
    save_file({prefix + name: t for name, t in tensors.items()}, folder / SINGLE)
    with pytest.raises(WeightError, match=rf"has '{prefix}.*text_config"):
        opened(folder)


def test_old_rotary_buffers_are_passed_over(tmp_path: Path) -> None:
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    folder = edit(tmp_path, lambda t: t.update({name: np.ones(8, np.float32)}))
    assert "layers.0.q" in opened(folder).names()


def test_tied_head_that_is_stored_twice(tmp_path: Path) -> None:
    def same(tensors: Tensors) -> None:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].copy()

    folder = edit(tmp_path, same, tie_word_embeddings=True)
    assert "head" not in opened(folder).names()


def test_tied_head_that_differs(tmp_path: Path) -> None:
    def other(tensors: Tensors) -> None:
        head = tensors["model.embed_tokens.weight"].copy()
        head[-1, -1] += 1
        tensors["lm_head.weight"] = head

    folder = edit(tmp_path, other, tie_word_embeddings=True)
    with pytest.raises(WeightError, match="tie_word_embeddings to false"):
        opened(folder)


def test_dummy_needs_no_weight_files(tmp_path: Path) -> None:
    shutil.copy(tiny_checkpoint("qwen3") / "config.json", tmp_path)
    spec = load_model_spec(tmp_path)
    with pytest.raises(WeightError, match="dummy"):
        opened(tmp_path)
    declared = lower(spec).weights
    weights = open_weights(tmp_path, spec, declared, load_format="dummy", seed=3)
    for name, weight in declared.items():
        array = weights.get(name)
        assert array.shape == weight.shape
        assert array.dtype == np.float32
        assert np.isfinite(array).all()


def test_dummy_is_decided_by_seed_and_name() -> None:
    folder = tiny_checkpoint("qwen2")

    def get(name: str, seed: int, dtype: Any = "float32") -> Any:
        return opened(folder, dtype, "dummy", seed).get(name)

    once = get("layers.0.gate", 1)
    np.testing.assert_array_equal(once, get("layers.0.gate", 1))
    assert not np.array_equal(once, get("layers.0.gate", 2))
    assert not np.array_equal(once, get("layers.0.up", 1))
    assert not np.array_equal(once, get("layers.1.gate", 1))
    rounded = get("layers.0.gate", 1, "bfloat16")
    np.testing.assert_array_equal(rounded, once.astype(ml_dtypes.bfloat16))


def test_a_dummy_expert_is_what_it_is_in_the_stack() -> None:
    """Stacks end within the values drawn, go on from the first of them, and repeat them."""
    for shape in ((3, 5, 7), (5, 300, 401), (2, 1100, 1009)):
        weights = DummyWeights({"experts": PlanWeight(Stored("experts", shape))}, 5, "float32")
        stack = weights.get("experts")
        for index in range(shape[0]):
            assert np.array_equal(weights.member("experts", index), stack[index])
    runs = ((1, 2), (3, 5))
    share = PlanWeight(Stored("experts", (4, 3, 7)), Share("experts", (4, 5, 7), runs, each=True))
    part = DummyWeights({"experts.share": share}, 5, "float32")
    for index in range(4):
        assert np.array_equal(part.member("experts.share", index), part.get("experts.share")[index])


def test_dummy_values_are_the_same_for_ever() -> None:
    """Published stories and figures are of them. A rank's share has rows of the whole."""
    shapes: dict[str, tuple[int, ...]] = {
        "embed": (211, 72),
        "layers.0.q": (96, 72),
        "layers.0.q.bias": (96,),
        "layers.1.attn_norm": (72,),
        "wide": (1100, 1000),  # more values than are drawn
    }
    declared = {name: PlanWeight(source) for name, source in own_names(shapes).items()}
    weights = DummyWeights(declared, 3, "bfloat16")
    digest = hashlib.sha256(b"".join(weights.get(name).tobytes() for name in shapes))
    assert digest.hexdigest()[:32] == "d57258cd8c178a2e6fc7ada68aa9680c"
    rows = RowsOf(Stored("wide", (1100, 1000)), ((7, 900),))
    share = PlanWeight(rows, Share("wide", (1100, 1000), ((7, 900),)))
    part = DummyWeights({"wide.share": share}, 3, "bfloat16").get("wide.share")
    np.testing.assert_array_equal(part, weights.get("wide")[7:900])


def test_dummy_values_keep_activations_in_size() -> None:
    spec = load_model_spec(tiny_checkpoint("qwen2"))
    wide = dataclasses.replace(spec, vocab_size=3000, hidden_size=1024)
    weights = open_weights(Path("."), wide, lower(wide).weights, "float32", "dummy", 0)
    embed = weights.get("embed")  # three million values: more than are drawn
    assert embed.std() == pytest.approx(1024**-0.5, rel=0.01)
    assert abs(embed.mean()) < 1e-3
    assert len(np.unique(embed, axis=0)) == 3000
    x = np.random.default_rng(0).standard_normal(1024).astype(np.float32)
    assert (weights.get("layers.0.gate") @ x).std() == pytest.approx(1.0, rel=0.3)
    assert weights.get("final_norm").mean() == pytest.approx(1.0, abs=0.05)
    assert abs(weights.get("layers.0.q.bias").mean()) < 0.05


def test_random_outliers_are_at_places_of_their_own() -> None:
    matrix = Packed("w", (300, 2048), RowCodebooks(4, 0.1, decoded=False))
    value = DummyWeights({"w": PlanWeight(matrix)}, 0, "bfloat16").get("w")
    assert isinstance(value, CodebookMatrix)
    assert value.ends[-1] == len(value.columns) == int(300 * 2048 * 0.1)
    for first, end in itertools.pairwise(value.ends):
        assert (np.diff(value.columns[first:end]) > 0).all()
