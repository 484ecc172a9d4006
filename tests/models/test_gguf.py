"""A GGUF file is the model that the checkpoint it was made of is: specs and weights are equal."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from gguf.quants import dequantize, quantize
from support.checkpoints import tiny_checkpoint
from support.gguf_models import ARCHITECTURES as WRITTEN
from support.gguf_models import LLAMA3, SAID, converted, floats, mixed, weights_of, write_gguf
from support.needs import Need, lacking

from penstock.errors import ModelError, WeightError
from penstock.models.gguf.architectures import ARCHITECTURES
from penstock.plan.lower import lower
from penstock.quant import BlockTensor
from penstock.weights.checkpoint import CheckpointWeights
from penstock.weights.model_folder import load_model_spec

ROTATING = {"phi": 8, "stablelm": 4}
"""Components of a head that rotate, where not all do."""


@pytest.mark.parametrize("family", WRITTEN)
def test_the_same_model(family: str, tmp_path: Path) -> None:
    folder = tiny_checkpoint(family, **SAID.get(family, {}))
    keys = {"rope__dimension_count": ROTATING.get(family)}
    path = write_gguf(folder, tmp_path / "model.gguf", **keys)
    theirs, own = load_model_spec(folder), load_model_spec(path)
    alike = {"names": None, "quantized": None, "notes": (), "architecture": ""}
    assert replace(own, **alike) == replace(theirs, **alike)
    expected, found = weights_of(folder, theirs), weights_of(path, own)
    assert set(found.names()) == set(expected.names())
    for name in expected.names():
        assert np.array_equal(found.get(name), expected.get(name)), name


def test_baichuan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of 7B are Llama's by another name; those of 13B have no rotation."""
    monkeypatch.setitem(WRITTEN, "llama", gguf.MODEL_ARCH.BAICHUAN)
    folder = tiny_checkpoint("llama", num_key_value_heads=4)
    path = write_gguf(folder, tmp_path / "model.gguf", tensor_data_layout="Meta AI original pth")
    theirs, own = load_model_spec(folder), load_model_spec(path)
    assert replace(own, names=None) == replace(theirs, names=None)
    expected, found = weights_of(folder, theirs), weights_of(path, own)
    for name in expected.names():
        assert np.array_equal(found.get(name), expected.get(name)), name
    larger = write_gguf(folder, tmp_path / "13b.gguf", block_count=40)
    with pytest.raises(ModelError, match=r"block_count .* Baichuan 13B, which has no rotation"):
        load_model_spec(larger)


@pytest.mark.parametrize("family", ["llama", "qwen3_moe", "phi3", "gemma3"])
def test_matrices_in_blocks_stay_in_them(family: str, tmp_path: Path) -> None:
    """Rows of heads and stacks of experts, too: the values are those of the package's decoder."""
    options = SAID.get(family, {}) | {"intermediate_size": 96}
    if family == "qwen3_moe":
        options["moe_intermediate_size"] = 32
    folder = tiny_checkpoint(family, **options)
    path = write_gguf(folder, tmp_path / "model.gguf", mixed)
    rounded = write_gguf(folder, tmp_path / "rounded.gguf")
    _overwrite(rounded, folder)
    spec, oracle = load_model_spec(path), load_model_spec(rounded)
    assert spec.quantized is not None
    assert {str(each) for each in spec.quantized.schemes} == {"Q4_0", "Q4_1", "Q5_0", "Q8_0"}
    expected = weights_of(rounded, oracle)
    found = weights_of(path, spec)
    blocks = 0
    for name in found.names():
        shape = expected.get(name).shape
        for index in range(shape[0]) if len(shape) == 3 else (None,):
            value = found.get(name) if index is None else found.member(name, index)
            other = expected.get(name) if index is None else expected.member(name, index)
            if isinstance(value, BlockTensor):
                blocks += 1
                value = value.dequantize()
            assert np.array_equal(value, other), name
    assert blocks >= 2 * 7


def _overwrite(path: Path, folder: Path) -> None:
    """Put what blocks stand for into a file of float32."""
    import json

    from gguf import GGUFReader

    reader = GGUFReader(path, "r+")
    tensors = converted(folder, json.loads((folder / "config.json").read_text()))
    for tensor in reader.tensors:
        values = tensors[tensor.name]
        kind = mixed(tensor.name, values.shape)
        if kind is not Type.F32:
            tensor.data[:] = dequantize(quantize(values, kind), kind).reshape(tensor.data.shape)
    reader.data.flush()


def test_frequencies_of_llama_3(tmp_path: Path) -> None:
    """Files have the divisors that follow from the parameters, which are found again."""
    folder = tiny_checkpoint("llama", rope_parameters=LLAMA3)
    theirs = load_model_spec(folder)
    divisors = _llama3_divisors(LLAMA3, 16)
    own = load_model_spec(_with_vector(folder, tmp_path, "rope_freqs.weight", divisors))
    assert own.layers[0].attention.rope == theirs.layers[0].attention.rope
    other = load_model_spec(_with_vector(folder, tmp_path, "rope_freqs.weight", divisors * 1.5))
    rope = other.layers[0].attention.rope
    assert rope is not None
    assert rope.short_factors == rope.long_factors
    assert np.allclose(rope.short_factors, divisors * 1.5)


@pytest.mark.parametrize("value", [np.nan, np.inf, 0.0, -1.0, 1e-30])
def test_frequencies_that_nothing_can_be_divided_by(tmp_path: Path, value: float) -> None:
    divisors = np.ones(8, np.float32)
    divisors[3] = value
    with pytest.raises(ModelError, match=r"rope_freqs\.weight has .* finite numbers"):
        load_model_spec(
            _with_vector(tiny_checkpoint("llama"), tmp_path, "rope_freqs.weight", divisors)
        )


def _llama3_divisors(scaling: dict[str, Any], dim: int) -> np.ndarray:
    frequencies = scaling["rope_theta"] ** (-np.arange(0, dim, 2) / dim)
    turns = scaling["original_max_position_embeddings"] * frequencies / (2 * np.pi)
    smooth = np.clip((turns - 1.0) / 3.0, 0.0, 1.0)
    return (1 / ((1 - smooth) / scaling["factor"] + smooth)).astype(np.float32)


def _with_vector(folder: Path, tmp_path: Path, name: str, values: np.ndarray) -> Path:
    import support.gguf_models as module

    path, plain = tmp_path / f"{name}{values[-1]}.gguf", module.converted

    def more(folder: Path, config: Any) -> dict[str, np.ndarray]:
        return {name: values.astype(np.float32), **plain(folder, config)}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "converted", more)
        return write_gguf(folder, path)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"attention__clamp_kqv": 5.0}, r"llama.attention.clamp_kqv \(5.0\) is not a key"),
        ({"rope__dimension_count": 8}, "must be 16, the size of a head"),
        ({"attention__value_length": 8}, "must be attention.key_length"),
        ({"attention__causal": False}, "only causal"),
        ({"rope__scaling__type": "new"}, "rope.scaling.type .*not supported"),
        ({"attention__head_count": [4, 2]}, "differs between layers"),
        ({"block_count": None}, r"llama\.block_count \(absent\) is required; .* convert the model"),
        ({"feed_forward_length": None}, r"llama\.feed_forward_length \(absent\) is required"),
        ({"attention__head_count_kv": 3}, r"head_count \(4\) must be a multiple of the 3 KV heads"),
        ({"rope__freq_base": 0.0}, r"llama\.rope\.freq_base \(0\.0\) must be greater than 1"),
        (
            {"rope__scaling__type": "linear", "rope__scaling__factor": -2.0},
            r"gguf: llama\.rope\.scaling\.factor \(-2\.0\) must be",
        ),
        ({"attention__head_count": 0}, r"llama\.attention\.head_count \(0\) must be from 1 to 64"),
        ({"embedding_length": 0}, r"llama\.embedding_length \(0\) must be from 1"),
        ({"block_count": 2**32 - 1}, r"llama\.block_count \(4294967295\) must be from 1 to 4096"),
        ({"vocab_size": 7}, r"llama\.vocab_size is 7, .* --ignore-config-field llama\.vocab_size"),
        ({"embedding_length": 32}, "asks? for|ask for"),
    ],
)
def test_what_is_not_known_is_refused(keys: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = write_gguf(tiny_checkpoint("llama"), tmp_path / "model.gguf", **keys)
    with pytest.raises((ModelError, WeightError), match=message) as refused:
        weights_of(path, load_model_spec(path))
    assert str(path) in str(refused.value)


def test_a_key_that_is_ignored(tmp_path: Path) -> None:
    path = write_gguf(tiny_checkpoint("llama"), tmp_path / "model.gguf", attention__new=1)
    spec = load_model_spec(path, ["llama.attention.new"])
    assert "ignored, as asked" in spec.notes[-1]
    with pytest.raises(ModelError, match=r"ignore_config_field llama\.newer is of no use"):
        load_model_spec(path, ["llama.attention.new", "llama.newer"])


SCANS = {
    "ssm__conv_kernel": 4,
    "ssm__state_size": 16,
    "ssm__group_count": 1,
    "ssm__inner_size": 128,
    "ssm__time_step_rank": 4,
    "expert_shared_feed_forward_length": 100,
    "attention__head_count_kv": [2, 2],
}
"""Keys of Granite 4's models without scans, which are called as Granite 3's."""


def test_granite_4_without_scans(tmp_path: Path) -> None:
    folder = tiny_checkpoint("granite")
    theirs = load_model_spec(folder)
    options: dict[str, Any] = {**SCANS, "rope__scaling__finetuned": True}
    own = load_model_spec(write_gguf(folder, tmp_path / "model.gguf", **options))
    assert own.layers == theirs.layers
    assert own.logits_scale == theirs.logits_scale
    options["rope__scaling__finetuned"] = False
    own = load_model_spec(write_gguf(folder, tmp_path / "still.gguf", **options))
    assert all(layer.attention.rope is None for layer in own.layers)


@pytest.mark.parametrize("family", ["llama", "qwen3_moe"])
def test_factors_of_what_matrices_make(family: str, tmp_path: Path) -> None:
    """Matrices that have one, in a format that does not keep it, are read as floats, and all others
    stay in blocks; of a stack, each matrix has its own."""
    options = SAID.get(family, {}) | {"intermediate_size": 96}
    if family == "qwen3_moe":
        options["moe_intermediate_size"] = 32
    folder = tiny_checkpoint(family, **options)
    stacked = family == "qwen3_moe"
    extra = {
        "blk.0.attn_q.scale": np.array([0.5], np.float32),
        "blk.0.attn_q.input_scale": np.array([3.0], np.float32),
        "blk.1.attn_output.scale": np.array(0.25, np.float32).reshape(1),
    }
    if stacked:
        experts = weights_of(folder, load_model_spec(folder)).get("layers.0.experts.up").shape[0]
        extra["blk.0.ffn_up_exps.scale"] = 1 + np.arange(experts, dtype=np.float32)
    plain = write_gguf(folder, tmp_path / "plain.gguf", mixed)
    path = _with_tensors(folder, tmp_path / "model.gguf", extra, mixed)
    spec = load_model_spec(path)
    assert "have a factor (blk.0.attn_q.scale) that their format does not keep" in spec.notes[-1]
    found, expected = (weights_of(each, load_model_spec(each)) for each in (path, plain))

    def floats_of(value: Any) -> np.ndarray:
        return value if isinstance(value, np.ndarray) else value.dequantize()

    assert np.allclose(found.get("layers.0.q"), floats_of(expected.get("layers.0.q")) * 0.5)
    assert np.allclose(found.get("layers.1.o"), floats_of(expected.get("layers.1.o")) * 0.25)
    assert isinstance(found.get("layers.1.q"), BlockTensor)
    if stacked:
        name = "layers.0.experts.up"
        for index in (0, experts - 1):
            whole = floats_of(expected.member(name, index)) * (1 + index)
            assert np.allclose(found.member(name, index), whole)
        assert np.allclose(found.get(name)[1], found.member(name, 1))


def _with_tensors(
    folder: Path, path: Path, more: dict[str, np.ndarray], types: Any = floats
) -> Path:
    return write_gguf(folder, path, types, change=lambda tensors: {**more, **tensors})


def test_gemma_3_without_a_pattern_and_a_local_base(tmp_path: Path) -> None:
    folder = tiny_checkpoint(
        "gemma3", query_pre_attn_scalar=16, head_dim=16, num_hidden_layers=6, layer_types=None
    )
    spec = load_model_spec(write_gguf(folder, tmp_path / "model.gguf"))
    windows = [layer.attention.window for layer in spec.layers]
    assert windows[5] is None
    assert None not in windows[:5]
    ropes = [layer.attention.rope for layer in spec.layers]
    assert ropes[0] is not None
    assert ropes[0].theta == 10_000.0


def test_the_page_names_every_architecture() -> None:
    page = (Path(__file__).parents[2] / "docs" / "gguf.md").read_text()
    named = set(re.findall(r"`([\w.-]+)`", page))
    assert {name.partition(" ")[0] for name in ARCHITECTURES} <= named


def some_file(tmp_path: Path, architecture: str, kind: str | None = None) -> Path:
    writer = gguf.GGUFWriter(path := tmp_path / "model.gguf", architecture)
    if kind is not None:
        writer.add_type(kind)
    writer.add_tensor("a", np.zeros(4, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize(
    ("architecture", "kind", "message"),
    [
        ("llama", "adapter", "is an adapter .* merge it into its model"),
        ("clip", "mmproj", r"is the part .* reads images or sound \(mmproj\)"),
        ("clip", None, r"is the part .* reads images or sound \(mmproj\)"),
        ("llama", "imatrix", "is an importance matrix .* --imatrix"),
        ("llama", "vocab", "is no model: general.type is 'vocab'"),
        ("llama", "model", "has no matrix token_embd.weight, so it is no whole model"),
    ],
)
def test_files_that_are_no_models(
    architecture: str, kind: str | None, message: str, tmp_path: Path
) -> None:
    path = some_file(tmp_path, architecture, kind)
    with pytest.raises(ModelError, match=f"{re.escape(str(path))} {message}"):
        load_model_spec(path)


def test_a_vocabulary_alone(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "llama")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(ModelError, match="has no tensors, only a vocabulary, so it is no model"):
        load_model_spec(tmp_path / "model.gguf")


def test_numbers_of_tokens_agree(tmp_path: Path) -> None:
    folder = tiny_checkpoint("llama")
    tokens = [f"<{i}>" for i in range(300)]
    path = write_gguf(folder, tmp_path / "a.gguf", tokenizer=("llama", tokens), vocab_size=299)
    message = r"has 301 rows and tokenizer\.ggml\.tokens has 300 tokens and llama\.\S+ is 299"
    with pytest.raises(ModelError, match=message):
        load_model_spec(path)
    path = write_gguf(folder, tmp_path / "b.gguf", vocab_size=299)
    spec = load_model_spec(path, ["llama.vocab_size"])
    assert any("llama.vocab_size ignored, as asked" in note for note in spec.notes)


def test_a_tensor_that_the_architecture_has_not(tmp_path: Path) -> None:
    path = _with_vector(tiny_checkpoint("qwen3"), tmp_path, "blk.0.attn_q.bias", np.ones(64))
    message = "'blk.0.attn_q.bias'; Qwen3ForCausalLM, for which its metadata ask, is computed with"
    with pytest.raises(WeightError, match=message):
        weights_of(path, load_model_spec(path))


def test_an_architecture_that_is_not_read(tmp_path: Path) -> None:
    path = some_file(tmp_path, "rwkv7")
    known = r"'rwkv7', which is not read .*those that are: apertus, arcee, "
    with pytest.raises(ModelError, match=known):
        load_model_spec(path)


@pytest.mark.parametrize("name", ["SmolLM2-135M-Instruct.Q4_1", "gemma-3-270m-q4_k_m"])
def test_published_files(name: str) -> None:
    """All tensors have a place in the model, and every matrix stays in its blocks."""
    path = Path(os.environ.get("PENSTOCK_GGUF_FILES", "/nowhere")) / f"{name}.gguf"
    if not path.exists():
        lacking(Need.FILE, f"{path.name}, in the folder that PENSTOCK_GGUF_FILES names")
    spec = load_model_spec(path)
    weights = CheckpointWeights(path, spec, lower(spec, "bfloat16").weights, "bfloat16")
    for name in weights.names():
        value = weights.get(name)
        is_matrix = len(value.shape) > 1
        assert isinstance(value, BlockTensor) is is_matrix, name


def test_tokens_that_the_vocabulary_names_as_ends(tmp_path: Path) -> None:
    folder = tiny_checkpoint("llama")
    path = write_gguf(folder, tmp_path / "plain.gguf")
    assert load_model_spec(path).eos_token_ids == (257,)
    tokens = [f"t{i}" for i in range(301)]
    tokens[255] = "<|im_end|>"
    with_tokens = write_gguf(folder, tmp_path / "named.gguf", tokenizer=("gpt2", tokens))
    assert set(load_model_spec(with_tokens).eos_token_ids) == {257, 255}
