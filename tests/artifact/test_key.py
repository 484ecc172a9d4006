"""An artifact is found by what it is of: nothing less may be the same, nothing more."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from support.checkpoints import tiny_checkpoint

from penstock.artifact.key import ArtifactKey, artifact_key
from penstock.backends.registry import backend
from penstock.config import EngineConfig
from penstock.engine.loader import plan_engine
from penstock.errors import WeightError
from penstock.interface.weights import Packing
from penstock.weights.identity import weight_files
from penstock.weights.safetensors import SafetensorsFile


def key(model: Path, form: Packing | None = None, **options: Any) -> ArtifactKey:
    engine_plan = plan_engine(EngineConfig(model=str(model), **options))
    form = form or backend("cpu").packing()
    assert form is not None
    return artifact_key(engine_plan.config, engine_plan.plan, form)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    shutil.copytree(tiny_checkpoint("llama", dtype="bfloat16"), folder)
    return folder


def test_equal_for_equal_content_anywhere(model: Path, tmp_path: Path) -> None:
    shutil.copytree(model, tmp_path / "copy")  # with its times
    assert key(model) == key(model) == key(tmp_path / "copy")
    assert key(model).digest() == key(tmp_path / "copy").digest()
    for options in (
        {"threads": 3},
        {"max_model_len": 64},
        {"enable_prefix_caching": False},
        {"seed": 9},
        {"served_model_name": "x"},
        {"kv_cache_bytes": 1 << 20},
    ):
        assert key(model, **options) == key(model), options


def test_another_tokenizer_is_no_newer_checkpoint(model: Path, tmp_path: Path) -> None:
    """So that engines with either stand side by side (``ArtifactStore``)."""
    other = tmp_path / "tokenizer"
    other.mkdir()
    other.joinpath("tokenizer.json").write_text(model.joinpath("tokenizer.json").read_text() + " ")
    mine = key(model, quantization="int4")
    its = key(model, quantization="int4", tokenizer=str(other))
    assert mine.tokenizer != its.tokenizer
    assert msgspec.structs.replace(its, tokenizer=mine.tokenizer) == mine
    assert key(model, tokenizer=str(other)) == key(model)  # which reads no text


@pytest.mark.parametrize(
    ("options", "fields"),
    [
        ({"dtype": "float32"}, {"dtype"}),
        ({"quantization": "int8"}, {"linear", "head", "plan", "calibration", "tokenizer"}),
        ({"quantization": "int4"}, {"linear", "head", "plan", "calibration", "tokenizer"}),
        ({"quantization": "int4", "quantization_calibration": False}, {"linear", "head", "plan"}),
        (
            {
                "quantization": "int4",
                "quantization_group": 64,
                "quantization_zero_points": True,
                "quantize_activations": False,
            },
            {"linear", "head", "plan"},
        ),
        ({"load_format": "dummy"}, {"weights", "dummy_seed"}),
    ],
)
def test_options_that_change_the_weights(
    model: Path, options: dict[str, Any], fields: set[str]
) -> None:
    plain, other = key(model), key(model, **options)
    changed = {f for f in plain.__struct_fields__ if getattr(plain, f) != getattr(other, f)}
    assert changed == fields
    assert plain.digest() != other.digest()
    assert len(plain.differences(other)) == len(fields)


def test_quantization_in_full(model: Path) -> None:
    keys = {
        key(model, quantization="int4", **more).digest()
        for more in ({}, {"quantization_group": 32}, {"quantize_head": False})
    }
    assert len(keys) == 3
    assert key(model, quantization="int4") == key(model, quantization="int4", quantize_head=True)


def test_the_native_code(model: Path) -> None:
    forms = [Packing("amx", 1), Packing("avx2", 1), Packing("amx", 2)]
    assert len({key(model, form).digest() for form in forms}) == 3
    old = key(model, forms[0])
    assert old.differences(key(model, forms[2])) == ["layout 1, not 2"]
    assert old.differences(msgspec.structs.replace(old, penstock="9", isa="avx2")) == [
        "isa amx, not avx2",
        f"penstock {old.penstock}, not 9",
    ]


def test_dummy_seeds(model: Path) -> None:
    zero, one = (key(model, load_format="dummy", seed=seed) for seed in (0, 1))
    assert zero.differences(one) == ["another seed"]


def test_the_files_content_counts_and_not_its_times(model: Path) -> None:
    before = key(model)
    os.utime(model / "model.safetensors", ns=(0, 1))
    assert key(model) == before
    assert before.weights[0].bytes == (model / "model.safetensors").stat().st_size
    text = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(text | {"eos_token_id": 5}))
    assert before.differences(key(model)) == ["another config.json"]


@pytest.mark.parametrize(
    "name", ["model.embed_tokens.weight", "model.layers.1.mlp.down_proj.weight"]
)
def test_other_values_in_a_file_of_the_same_time_and_size(model: Path, name: str) -> None:
    """As archives and images make them, where every file has one time."""
    path = model / "model.safetensors"
    os.utime(path, ns=(0, 0))
    before = key(model)
    tensors = load_file(path)
    tensors[name] = (tensors[name].astype(np.float32) * 1.5).astype(tensors[name].dtype)
    size = path.stat().st_size
    save_file(tensors, path, metadata={"format": "pt"})
    os.utime(path, ns=(0, 0))
    assert path.stat().st_size == size
    after = key(model)
    assert before.weights[0].digest != after.weights[0].digest
    assert before.differences(after) == ["other weight files"]


def test_every_shard_counts(tmp_path: Path) -> None:
    folder = tmp_path / "shards"
    shutil.copytree(tiny_checkpoint("llama", shard_bytes=100_000), folder)
    shards = sorted(folder.glob("*.safetensors"))
    assert len(shards) > 1
    assert [file.name for file in weight_files(folder)] == [shard.name for shard in shards]
    keys = {key(folder).digest()}
    for shard in shards:
        flip_a_bit(shard)
        keys.add(key(folder).digest())
    assert len(keys) == len(shards) + 1


def flip_a_bit(path: Path) -> None:
    """Change a value where a reader of samples would not look, and nothing else."""
    times = path.stat()
    tensors = SafetensorsFile(path).tensors.values()
    at = max(tensors, key=lambda tensor: tensor.stop - tensor.start).start
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def test_one_bit_of_a_file_of_the_same_time_and_size(model: Path) -> None:
    before = key(model)
    flip_a_bit(model / "model.safetensors")
    assert before.differences(key(model)) == ["other weight files"]


def test_a_file_that_is_gone(model: Path) -> None:
    (model / "model.safetensors").unlink()
    with pytest.raises(WeightError, match=r"has no model\.safetensors"):
        weight_files(model)


def test_zero_points_and_float_activations_have_keys_of_their_own(model: Path) -> None:
    plain = {"quantization": "int4", "quantization_group": 64}
    keys = [
        key(model, **plain),
        key(model, **plain, quantization_zero_points=True),
        key(model, **plain, quantize_activations=False),
    ]
    assert len({k.digest() for k in keys}) == 3
    assert [k.scheme for k in keys] == ["int4-g64", "int4-g64z", "int4-g64"]
