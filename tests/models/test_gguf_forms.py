"""GGUF files whose tensors are not a checkpoint's by other names are the model that it is, too."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from support.checkpoints import tiny_checkpoint
from support.families import FAMILIES
from support.forty_tokens import logits
from support.gguf_form_parts import DEEPSEEK, DEEPSEEK_BEFORE
from support.gguf_form_table import FORMS, LIKE_OTHERS
from support.gguf_forms import write_form
from support.gguf_models import weights_of

from penstock.errors import ModelError, WeightError
from penstock.weights.model_folder import load_model_spec

LLAMA_4: dict[str, Any] = {
    "num_hidden_layers": 4,
    "interleave_moe_layer_step": 2,
    "attn_scale": 0.1,
    "attention_chunk_size": 8192,
    "floor_scale": 8192,
    "no_rope_layers": [1, 1, 1, 0],
    "layer_types": ["chunked_attention"] * 3 + ["full_attention"],
    "moe_layers": [1, 3],
}
OPTIONS: dict[str, dict[str, Any]] = {
    "falcon": {
        "new_decoder_architecture": True,
        "num_ln_in_parallel_attn": 1,
        "num_kv_heads": 2,
        "bias": False,
        "alibi": False,
    },
    "gemma4_text": {"vocab_size_per_layer_input": 301},
    "lfm2_moe": {"routed_scaling_factor": 1.0},
    "llama4_text": LLAMA_4,
    "minicpm3": {"scale_emb": 12, "dim_model_base": 256},
    "mpt": {"layer_norm_epsilon": 1e-5},
    "nemotron_h": {"layers_block_type": ["linear_attention", "moe", "full_attention", "moe"]},
}
"""Where files have no key for a field, or a key for several of them."""
OTHER_WEIGHTS = ("apertus", "falcon_h1", "qwen3_5_moe_text", "qwen3_5_text")
"""Families whose files multiply factors into weights, or have these in another order."""


def checkpoint(family: str) -> Path:
    first = next(iter(FAMILIES[family].cases.values()))
    return tiny_checkpoint(family, **{**first, **OPTIONS.get(family, {})})


@pytest.mark.parametrize("family", sorted(set(FORMS) - set(OTHER_WEIGHTS)))
def test_the_same_model(family: str, tmp_path: Path) -> None:
    folder = checkpoint(family)
    path = write_form(folder, tmp_path / "model.gguf", FORMS[family])
    theirs, own = load_model_spec(folder), load_model_spec(path)
    alike = {"names": None, "quantized": None, "notes": (), "architecture": ""}
    if not own.layers[0].mixers or family == "mamba2":
        alike["max_positions"] = 0
    assert replace(own, **alike) == replace(theirs, **alike)
    expected, found = weights_of(folder, theirs), weights_of(path, own)
    assert set(found.names()) == set(expected.names())
    for name in expected.names():
        value, other = found.get(name), expected.get(name)
        if name.endswith("a_log"):  # which files have the exponentials of
            assert np.allclose(value, other, atol=1e-6), name
        else:
            assert np.array_equal(value, other), name


def assert_same(path: Path, folder: Path) -> None:
    expected, found = (weights_of(each, load_model_spec(each)) for each in (folder, path))
    for name in expected.names():
        assert np.array_equal(found.get(name), expected.get(name)), name


@pytest.mark.parametrize("name", LIKE_OTHERS)
def test_families_by_another_name(name: str, tmp_path: Path) -> None:
    family, form = LIKE_OTHERS[name]
    options = {"attention_multiplier": 0.25} if family == "granite" else {}
    folder = tiny_checkpoint(family, **options)
    path = write_form(folder, tmp_path / "model.gguf", form)
    theirs, own = load_model_spec(folder), load_model_spec(path)
    assert [each.mixer for each in own.layers] == [each.mixer for each in theirs.layers]
    for layer, other in zip(own.layers, theirs.layers, strict=True):
        assert layer.residual_scale == pytest.approx(other.residual_scale, rel=1e-5)
    assert own.logits_scale == pytest.approx(theirs.logits_scale, rel=1e-5)
    assert own.embedding_scale == theirs.embedding_scale
    assert_same(path, folder)


def test_keys_and_values_of_one_matrix(tmp_path: Path) -> None:
    """As the first files of DeepSeek have them."""
    for family in ("deepseek_v2", "deepseek_v3"):
        folder = checkpoint(family)
        assert_same(write_form(folder, tmp_path / f"{family}.gguf", DEEPSEEK_BEFORE), folder)


@pytest.mark.parametrize("form", [DEEPSEEK, DEEPSEEK_BEFORE])
def test_latents_in_blocks(form: Any, tmp_path: Path) -> None:
    """Matrices of heads are read as floats, and all others as they are."""
    sizes = {"qk_nope_head_dim": 32, "kv_lora_rank": 32, "v_head_dim": 32, "q_lora_rank": None}
    folder = tiny_checkpoint("deepseek_v3", num_hidden_layers=1, **sizes)

    def eight_bits(name: str, shape: tuple[int, ...]) -> Type:
        return Type.Q8_0 if len(shape) > 1 and shape[-1] % 32 == 0 else Type.F32

    path = write_form(folder, tmp_path / "model.gguf", form, eight_bits)
    ours, plain = (weights_of(each, load_model_spec(each)) for each in (path, folder))
    for name in plain.names():
        value, other = ours.get(name), plain.get(name)
        whole = name.endswith(("k_up", "v_up", "norm")) or other.shape[-1] % 32
        assert isinstance(value, np.ndarray) is bool(whole), name
        floats = value if isinstance(value, np.ndarray) else value.dequantize()
        assert np.allclose(floats, other, atol=np.abs(other).max() / 100), name


@pytest.mark.parametrize("case", ["gemma4-shared-keys", "gemma4-experts"])
def test_other_forms_of_gemma_4(case: str, tmp_path: Path) -> None:
    options = FAMILIES["gemma4_text"].cases[case]
    folder = tiny_checkpoint("gemma4_text", **{**options, **OPTIONS["gemma4_text"]})
    path = write_form(folder, tmp_path / "model.gguf", FORMS["gemma4_text"])
    theirs, own = load_model_spec(folder), load_model_spec(path)
    assert own.layers == theirs.layers
    assert_same(path, folder)


YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "original_max_position_embeddings": 32,
    "mscale": 0.7,
    "mscale_all_dim": 0.7,
}


def test_yarn_over_latents(tmp_path: Path) -> None:
    folder = tiny_checkpoint("deepseek_v2", rope_parameters=YARN)
    path = write_form(folder, tmp_path / "model.gguf", DEEPSEEK)
    theirs, own = (load_model_spec(each).layers[0].attention for each in (folder, path))
    assert own == theirs
    assert own.scale > 32**-0.5


@pytest.mark.parametrize(
    ("family", "keys", "message"),
    [
        (
            "deepseek_v3",
            {"expert_gating_func": 1},
            r"expert_gating_func \(1\) contradicts .*exp_probs",
        ),
        ("deepseek_v3", {"expert_gating_func": 4}, "must be 1, softmax, or 2, sigmoid"),
        ("deepseek_v3", {"attention__key_length": 40}, "must be that of a latent of 40 and 8"),
        ("deepseek_v3", {"attention__temperature_scale": 0.1}, "is not a key Penstock knows"),
        ("gemma4_text", {"rope__dimension_count_swa": 8}, "must be 16, the size of a head"),
        ("gemma4_text", {"attention__sliding_window_pattern": 6}, "a value for each layer"),
        ("gemma4_text", {"feed_forward_length": [100] * 5 + [150]}, "or twice it in layers"),
        ("glm4_moe", {"expert_gating_func": 1}, "must be 2, sigmoid"),
        ("lfm2_moe", {"expert_gating_func": 1}, "must be 2, sigmoid"),
        ("mamba2", {"ssm__time_step_rank": 7}, "must divide the 128"),
        ("mamba2", {"ssm__inner_size": 96}, "must be a multiple of 64"),
        ("qwen3_5_text", {"ssm__time_step_rank": 7}, "must divide the 64"),
        ("qwen3_5_text", {"attention__recurrent_layers": [True]}, "must have 4 values"),
        ("ministral3", {"rope__scaling__type": "none"}, "must be yarn, as queries grow"),
        ("mpt", {"attention__max_alibi_bias": 0.0}, "must be 8"),
        ("mpt", {"attention__head_count_kv": 1}, "one for each head"),
        ("bamba", {"rope__scaling__finetuned": False}, "must be true for Bamba"),
        ("granitemoehybrid", {"attention__head_count_kv": [0, 2]}, "must be 3 integers"),
        ("granitemoehybrid", {"attention__head_count_kv": [1, 2, 0]}, "must be one number, or 0"),
    ],
)
def test_what_contradicts_itself(
    family: str, keys: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = write_form(checkpoint(family), tmp_path / "model.gguf", FORMS[family], **keys)
    with pytest.raises(ModelError, match=message):
        load_model_spec(path)


def test_rates_that_do_not_decay(tmp_path: Path) -> None:
    form = FORMS["mamba2"]

    def growing(name: str, values: Any, config: Any) -> Any:
        for each, changed in form.change(name, values, config):
            yield each, -changed if each.endswith("A_log") else changed

    path = write_form(checkpoint("mamba2"), tmp_path / "model.gguf", replace(form, change=growing))
    weights = weights_of(path, load_model_spec(path))
    with pytest.raises(WeightError, match=r"blk\.0\.ssm_a must be less than 0"):
        weights.get("layers.0.scan.a_log")


def test_layers_that_draft_are_left_out(tmp_path: Path) -> None:
    """They stand behind the others, and are counted with them."""
    form, folder = FORMS["glm4_moe"], checkpoint("glm4_moe")

    def more(name: str, values: Any, config: Any) -> Any:
        yield name, values
        if name == "model.norm.weight":
            yield "blk.2.nextn.eh_proj.weight", np.zeros((64, 128), np.float32)
            yield "blk.2.attn_norm.weight", np.ones(64, np.float32)

    path = write_form(
        folder,
        tmp_path / "model.gguf",
        replace(form, change=more),
        block_count=3,
        nextn_predict_layers=1,
    )
    assert len(load_model_spec(path).layers) == 2
    assert_same(path, folder)


def test_numbers_of_layers_in_the_metadata(tmp_path: Path) -> None:
    """Apertus's activation is told there, and is no tensor."""
    folder = checkpoint("apertus")
    path = write_form(folder, tmp_path / "model.gguf", FORMS["apertus"])
    weights = weights_of(path, load_model_spec(path))
    assert weights.get("layers.0.act_p").tolist() == [0.5]
    assert weights.get("layers.1.act_eps").tolist() == [0.25]
    bad = replace(FORMS["apertus"], keys={"xielu.alpha_p": lambda c: [0.5] * 3})
    with pytest.raises(ModelError, match=r"xielu\.alpha_p must be 2 numbers"):
        load_model_spec(write_form(folder, tmp_path / "bad.gguf", bad))


def test_chunks_of_llama_4_that_are_none(tmp_path: Path) -> None:
    path = write_form(
        checkpoint("llama4_text"),
        tmp_path / "model.gguf",
        FORMS["llama4_text"],
        attention__sliding_window=0,
    )
    for layer in load_model_spec(path).layers:
        assert layer.attention.window is None
        assert layer.attention.rope is not None


@pytest.mark.parametrize("family", ["falcon_h1", "qwen3_5_moe_text", "qwen3_5_text"])
def test_the_same_logits(family: str, tmp_path: Path) -> None:
    folder = checkpoint(family)
    path = write_form(folder, tmp_path / "model.gguf", FORMS[family])
    assert np.allclose(logits(path), logits(folder), atol=1e-4)
