"""Weights of heads: from their own files and from their target's, and maps of tokens."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from support.checkpoints import VOCAB, tiny_checkpoint
from support.gptq_checkpoints import PACKED_VOCAB, edit_tensors, gptq_checkpoint
from support.head_checkpoints import (
    EAGLE1,
    EAGLE3,
    MEDUSA,
    Arrays,
    eagle1_arrays,
    eagle3_arrays,
    medusa_arrays,
    target_folder,
    write_heads,
)

from penstock import demo_model_path, eagle_head_path, medusa_heads_path
from penstock.errors import WeightError
from penstock.interface.weights import WeightSource
from penstock.models.draft_heads import DraftHeadsSpec
from penstock.models.draft_heads_config import DraftHeadsKind
from penstock.models.spec import DType, EmbeddingScale
from penstock.plan.lower import lower
from penstock.weights.checkpoint import open_weights
from penstock.weights.model_folder import load_draft_heads_spec, load_model_spec
from penstock.weights.token_map import read_token_map


def spec_of(folder: Path, kind: DraftHeadsKind, target: Path) -> DraftHeadsSpec:
    return load_draft_heads_spec(folder, kind, load_model_spec(target))


def heads_of(folder: Path, kind: DraftHeadsKind, target: Path) -> WeightSource:
    spec = spec_of(folder, kind, target)
    return open_weights(folder, spec, lower(spec).weights, "float32", target=target)


@pytest.mark.parametrize("tied", [False, True])
def test_eagle_1_shares_embedding_and_output_matrix(tmp_path: Path, tied: bool) -> None:
    target = target_folder(tie_word_embeddings=tied)
    theirs = load_file(target / "model.safetensors")
    embed = theirs["model.embed_tokens.weight"]
    for own in (False, True):
        arrays = eagle1_arrays(embed=own)
        folder = write_heads(tmp_path / str(own), EAGLE1, arrays)
        spec = spec_of(folder, "eagle", target)
        declared = lower(spec).weights
        shared = {name for name, weight in declared.items() if weight.checkpoint == "target"}
        assert shared == ({"head"} if own else {"embed", "head"})
        weights = open_weights(folder, spec, declared, "float32", target=target)
        assert set(weights.names()) == set(declared)
        expected = arrays["embed_tokens.weight"] if own else embed
        np.testing.assert_array_equal(weights.get("embed"), expected)
        np.testing.assert_array_equal(weights.get("head"), theirs.get("lm_head.weight", embed))
        with pytest.raises(ValueError, match="need its checkpoint"):
            open_weights(folder, spec, declared, "float32")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("shuffled", [False, True])
def test_a_quantized_output_matrix_is_shared_by_its_values(
    tmp_path: Path, bits: int, shuffled: bool, dtype: DType
) -> None:
    packed, floats = gptq_checkpoint(
        tmp_path, bits=bits, sym=False, version="gptq_v2", shuffled=shuffled, lm_head=True
    )
    config = EAGLE1 | {"vocab_size": PACKED_VOCAB}
    folder = write_heads(tmp_path / "heads", config, eagle1_arrays(embed=False))
    spec = spec_of(folder, "eagle", packed)
    assert lower(spec).takes_from_target
    weights = open_weights(folder, spec, lower(spec).weights, dtype, target=packed)
    theirs = load_file(floats / "model.safetensors")
    for name, stored in (("head", "lm_head"), ("embed", "model.embed_tokens")):
        array = weights.get(name)
        assert not array.flags.writeable
        assert array.dtype == dtype
        np.testing.assert_array_equal(array, theirs[f"{stored}.weight"].astype(array.dtype))


def test_an_output_matrix_of_floats_of_a_quantized_target_is_shared(tmp_path: Path) -> None:
    packed, floats = gptq_checkpoint(tmp_path)
    folder = write_heads(tmp_path / "heads", EAGLE1, eagle1_arrays())
    theirs = load_file(floats / "model.safetensors")
    weights = heads_of(folder, "eagle", packed)
    np.testing.assert_array_equal(weights.get("head"), theirs["lm_head.weight"])


def test_the_output_matrix_is_found_by_the_targets_names(tmp_path: Path) -> None:
    target = tiny_checkpoint("gpt_neox")
    folder = write_heads(tmp_path, EAGLE1, eagle1_arrays(embed=False))
    weights, theirs = heads_of(folder, "eagle", target), load_file(target / "model.safetensors")
    np.testing.assert_array_equal(weights.get("head"), theirs["embed_out.weight"])
    np.testing.assert_array_equal(weights.get("embed"), theirs["gpt_neox.embed_in.weight"])


def test_a_target_whose_files_lack_the_prefix_of_names(tmp_path: Path) -> None:
    """As GPT-2 is published, which was saved without its output matrix."""
    target = tmp_path / "target"
    shutil.copytree(tiny_checkpoint("gpt2"), target)
    theirs = load_file(target / "model.safetensors")
    bare = {name.removeprefix("transformer."): array for name, array in theirs.items()}
    save_file(bare, target / "model.safetensors", {"format": "pt"})
    folder = write_heads(tmp_path / "heads", EAGLE1, eagle1_arrays(embed=False))
    weights = heads_of(folder, "eagle", target)
    np.testing.assert_array_equal(weights.get("embed"), theirs["transformer.wte.weight"])
    np.testing.assert_array_equal(weights.get("head"), theirs["lm_head.weight"])


def test_an_output_matrix_brings_what_the_target_does_to_logits(tmp_path: Path) -> None:
    """Its bias, scale and cap; and embeddings are read as they are stored, as in training."""
    target = tiny_checkpoint("phi", num_hidden_layers=7)  # with a bias
    folder = write_heads(tmp_path / "phi", EAGLE1, eagle1_arrays(embed=False))
    spec = spec_of(folder, "eagle", target)
    theirs = load_file(target / "model.safetensors")
    weights = heads_of(folder, "eagle", target)
    np.testing.assert_array_equal(weights.get("head.bias"), theirs["lm_head.bias"])
    capped = replace(load_model_spec(target), logits_scale=0.5, logits_softcap=3.0)
    spec = load_draft_heads_spec(folder, "eagle", capped)
    kinds = [op.kind for op in lower(spec).ops]
    assert kinds[-4:] == ["Linear", "Scale", "SoftCap", "Argmax"]
    scaled = replace(capped, embedding_scale=EmbeddingScale(8.0))
    assert lower(load_draft_heads_spec(folder, "eagle", scaled)).ops == lower(spec).ops
    own = write_heads(tmp_path / "own", EAGLE3, eagle3_arrays())
    assert not load_draft_heads_spec(own, "eagle", capped).head_bias
    assert "SoftCap" not in [op.kind for op in lower(spec_of(own, "eagle", target)).ops]


@pytest.mark.parametrize("family", ["llama", "gpt_neox"])
def test_the_embedding_is_no_output_matrix_unless_it_is_tied(tmp_path: Path, family: str) -> None:
    """An untied target whose files lack it is refused: the embedding would draft nonsense."""
    target = tmp_path / "target"
    shutil.copytree(tiny_checkpoint(family), target)
    name = {"llama": "lm_head.weight", "gpt_neox": "embed_out.weight"}[family]
    edit_tensors(target, **{name: None})
    folder = write_heads(tmp_path / "heads", EAGLE1, eagle1_arrays())
    with pytest.raises(WeightError, match=f"lacks tensor '{name}'.*tie_word_embeddings to true"):
        heads_of(folder, "eagle", target)


def test_eagle_3_shares_the_embedding_at_most(tmp_path: Path) -> None:
    target = target_folder()
    folder = write_heads(tmp_path / "own", EAGLE3, eagle3_arrays(embed=True))
    assert not lower(spec_of(folder, "eagle", target)).takes_from_target
    arrays = eagle3_arrays()
    folder = write_heads(tmp_path / "shared", EAGLE3, arrays, dtype=ml_dtypes.bfloat16)
    spec = spec_of(folder, "eagle", target)
    assert lower(spec).takes_from_target
    weights = open_weights(folder, spec, lower(spec).weights, "float32", target=target)
    assert weights.get("embed").shape == (VOCAB, 64)
    expected = arrays["midlayer.hidden_norm.weight"].astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(weights.get("layers.0.feature_norm"), expected.astype(np.float32))
    del arrays["lm_head.weight"]
    folder = write_heads(tmp_path / "none", EAGLE3, arrays)
    with pytest.raises(WeightError, match=r"lacks tensor 'lm_head.weight'"):
        open_weights(folder, spec, lower(spec).weights, "float32", target=target)


def without(name: str) -> Callable[[Arrays], Arrays]:
    return lambda arrays: {n: a for n, a in arrays.items() if n != name}


@pytest.mark.parametrize(
    ("kind", "config", "arrays", "change", "problem"),
    [
        ("medusa", MEDUSA, medusa_arrays, without("1.0.linear.bias"), r"lacks tensor '1.0.linear"),
        (
            "medusa",
            MEDUSA | {"medusa_num_heads": 2},
            medusa_arrays,
            lambda a: a,
            "no place in the model: '2.0.linear.bias'",
        ),
        (
            "medusa",
            MEDUSA,
            medusa_arrays,
            lambda a: a | {"1.1.weight": a["1.1.weight"][:50].copy()},
            r"'1.1.weight' has shape \[50, 64\]",
        ),
        (
            "medusa",
            MEDUSA,
            medusa_arrays,
            lambda a: a | {"1.1.weight": a["1.1.weight"].astype(np.int8)},
            "stored as I8",
        ),
        ("eagle", EAGLE1, eagle1_arrays, without("fc.bias"), "lacks tensor 'fc.bias'"),
        (
            "eagle",
            EAGLE1,
            eagle1_arrays,
            lambda a: a | {"layers.0.input_layernorm.weight": np.ones(64, np.float32)},
            "no place in the model",
        ),
        ("eagle", EAGLE1, eagle1_arrays, lambda a: a | {"d2t": np.arange(3)}, "no place"),
        (
            "eagle",
            EAGLE3,
            eagle3_arrays,
            lambda a: a | {"layers.0.mlp.up_proj.weight": a["midlayer.mlp.up_proj.weight"]},
            "are one weight",
        ),
    ],
)
def test_files_that_do_not_fit_are_refused(
    tmp_path: Path,
    kind: DraftHeadsKind,
    config: dict[str, Any],
    arrays: Callable[[], Arrays],
    change: Callable[[Arrays], Arrays],
    problem: str,
) -> None:
    target = target_folder()
    folder = write_heads(tmp_path, config, change(arrays()))
    with pytest.raises(WeightError, match=problem):
        heads_of(folder, kind, target)


def test_idle_tensors_are_left(tmp_path: Path) -> None:
    name = "layers.0.self_attn.rotary_emb.inv_freq"
    arrays = eagle1_arrays() | {name: np.ones(8, np.float32)}
    folder, target = write_heads(tmp_path, EAGLE1, arrays), target_folder()
    assert heads_of(folder, "eagle", target)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda d: d[:-1].copy(), r"shape \[119\]"),
        (lambda d: d - 1000, "outside the vocabulary of 301"),
        (lambda d: d + (np.arange(len(d)) == 7) * 2**62, "maps row 7 to token"),
        (lambda d: -np.arange(len(d)), "several rows to one token"),
        (lambda d: d.astype(np.float32), "must be I32 or I64"),
        (lambda d: None, "lacks tensor 'd2t'"),
    ],
)
def test_maps_of_tokens_are_checked(
    tmp_path: Path, change: Callable[[Any], Any], problem: str
) -> None:
    target = target_folder()
    arrays = eagle3_arrays()
    changed = change(arrays.pop("d2t"))
    folder = write_heads(tmp_path, EAGLE3, arrays | ({} if changed is None else {"d2t": changed}))
    spec = spec_of(folder, "eagle", target)
    offsets = lower(spec).token_offsets
    assert offsets is not None
    with pytest.raises(WeightError, match=problem):
        read_token_map(folder, offsets, spec.vocab_size)
    dummy = load_draft_heads_spec(folder, "eagle", load_model_spec(target), dummy=True)
    assert lower(dummy).token_offsets is None
    assert not lower(dummy).takes_from_target


def test_a_whole_vocabulary_needs_no_map(tmp_path: Path) -> None:
    arrays = {n: a for n, a in eagle3_arrays().items() if n not in ("d2t", "t2d")}
    arrays["lm_head.weight"] = medusa_arrays()["0.1.weight"]
    folder, target = (
        write_heads(tmp_path, EAGLE3 | {"draft_vocab_size": None}, arrays),
        target_folder(),
    )
    assert lower(spec_of(folder, "eagle", target)).token_offsets is None


@pytest.mark.parametrize(
    ("kind", "folder"), [("medusa", medusa_heads_path()), ("eagle", eagle_head_path())]
)
def test_the_demo_models_heads_are_read(kind: DraftHeadsKind, folder: Path) -> None:
    spec = spec_of(folder, kind, demo_model_path())
    declared = lower(spec).weights
    weights = open_weights(folder, spec, declared, "bfloat16", target=demo_model_path())
    assert set(weights.names()) == set(declared)
    for name, weight in declared.items():
        array = weights.get(name)
        assert array.shape == weight.shape
        assert np.isfinite(array.astype(np.float32)).all()
    assert lower(spec).token_offsets is None  # they draft any token of the demo model
    (file,) = folder.glob("*.safetensors")
    stored = load_file(file)
    ours = [weights.get(name) for name in declared]
    for name, array in stored.items():
        assert any(np.array_equal(array, each) for each in ours), f"{name} is read by nobody"
