"""Adapters' folders: what is read of them, and what is refused by name."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from support.adapters import write_adapter
from support.checkpoints import tiny_checkpoint

from penstock.config import EngineConfig
from penstock.engine.adapters import AdapterStore
from penstock.engine.loader import plan_engine
from penstock.errors import RequestError, WeightError

AT = "base_model.model.model.layers.0.self_attn.q_proj"


@pytest.fixture(scope="module")
def store() -> AdapterStore:
    config = EngineConfig(model=str(tiny_checkpoint("llama")), backend="reference", max_loras=2)
    return AdapterStore(plan_engine(config))


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_adapter(
        tmp_path_factory.mktemp("sound") / "adapter", tiny_checkpoint("llama"), rank=4
    )


def changed(tmp_path: Path, sound: Path, **fields: Any) -> Path:
    """The adapter with other fields of its configuration; None: without."""
    folder = tmp_path / "adapter"
    shutil.copytree(sound, folder)
    path = folder / "adapter_config.json"
    config = json.loads(path.read_text()) | fields
    path.write_text(json.dumps({k: v for k, v in config.items() if v is not None}))
    return folder


def rewritten(
    tmp_path: Path, sound: Path, change: Callable[[dict[str, Any]], dict[str, Any]]
) -> Path:
    """The adapter with other tensors."""
    folder = changed(tmp_path, sound)
    path = folder / "adapter_model.safetensors"
    save_file(change(load_file(path)), path)
    return folder


def test_what_an_engine_is_given(store: AdapterStore, sound: Path) -> None:
    adapter = store.load(sound)
    tensors = load_file(sound / "adapter_model.safetensors")
    own = adapter.matrices["layers.0.q"]
    assert (adapter.rank, own.scale, len(adapter.matrices)) == (4, 1.0, 14)
    assert np.array_equal(own.down, tensors[f"{AT}.lora_A.weight"])
    assert np.array_equal(own.up, tensors[f"{AT}.lora_B.weight"])
    assert store.load(sound) is adapter
    assert store.find(adapter.digest) is adapter
    assert store.find("") is None


def test_an_adapter_is_what_is_in_it(store: AdapterStore, sound: Path, tmp_path: Path) -> None:
    """The same weights elsewhere are the same adapter, and another scale is another one."""
    first = store.load(sound)
    assert store.load(changed(tmp_path, sound, lora_dropout=0.5)) is first
    other = store.load(changed(tmp_path / "other", sound, lora_alpha=8))
    assert other.digest != first.digest
    store.drop(other.digest)
    with pytest.raises(RequestError, match="not loaded any more"):
        store.find(other.digest)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"peft_type": "IA3"}, "peft_type is 'IA3'"),
        ({"use_dora": True}, "use_dora is True"),
        ({"bias": "all"}, "bias is 'all'"),
        ({"lora_bias": True}, "lora_bias is True"),
        ({"modules_to_save": ["lm_head"]}, r"modules_to_save is \['lm_head'\]"),
        ({"trainable_token_indices": [1]}, "trainable_token_indices"),
        ({"layer_replication": [[0, 2]]}, "layer_replication"),
        ({"target_parameters": ["experts"]}, "target_parameters"),
        ({"init_lora_weights": "pissa_niter_4"}, "path_initial_model_for_weight_conversion"),
        ({"use_something_new": 3}, "use_something_new is 3, and no such option is known"),
        ({"r": 8}, r"ranks disagree: adapter_config.json says 8"),
        ({"r": 300}, "r is 300; ranks of 1 to 256"),
        ({"rank_pattern": {"q_proj": 2}}, "ranks disagree"),
        ({"rank_pattern": {"(": 2}}, "no regular expression"),
        ({"rank_pattern": {"(?i)q_proj": 4}}, "no regular expression"),
        ({"target_modules": "a{99999999999999}"}, "no regular expression"),
        ({"lora_alpha": "much"}, "lora_alpha must be a number"),
        ({"lora_alpha": 10**400}, "lora_alpha must be a number"),
        ({"target_modules": []}, "target_modules must be a list"),
        ({"target_modules": ["q_proj", "fc1"]}, "lacks a target: .* names 'fc1'"),
        ({"layers_to_transform": "first"}, "layers_to_transform"),
    ],
)
def test_options_that_are_refused(
    store: AdapterStore, sound: Path, tmp_path: Path, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(WeightError, match=message):
        store.load(changed(tmp_path, sound, **fields))


@pytest.mark.parametrize(
    "fields",
    [
        {"target_modules": "all-linear"},
        {"target_modules": r".*\.(q|k|v|o|gate|up|down)_proj"},
        {"init_lora_weights": "gaussian", "use_dora": False, "modules_to_save": None},
        {"fan_in_fan_out": True},
        {"something_new": []},
    ],
)
def test_options_that_change_nothing(
    store: AdapterStore, sound: Path, tmp_path: Path, fields: dict[str, Any]
) -> None:
    assert store.load(changed(tmp_path, sound, **fields)) is store.load(sound)


def _without(name: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda tensors: {each: value for each, value in tensors.items() if name not in each}


def _with(name: str, value: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda tensors: tensors | {name: np.asarray(value, np.float32)}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_without("layers.1.self_attn.q_proj"), r"lacks targets: .*layers\.1\.self_attn\.q_proj"),
        (_without("layers.0.self_attn.q_proj.lora_B"), "and not the other side"),
        (_without("lora"), "has no tensors"),
        (_with(f"{AT}.lora_magnitude_vector", [1.0]), "DoRA is not served"),
        (_with("base_model.model.model.embed_tokens.lora_embedding_A", [1.0]), "embeddings"),
        (_with(f"{AT}.lora_A.weight", np.zeros((4, 63))), r"\[64, 63\].* is \[64, 64\]"),
        (_with(f"{AT}.lora_A.weight", np.zeros((3, 64))), "ranks disagree"),
        (_with(f"{AT}.lora_A.weight", np.full((4, 64), np.nan)), "is not finite"),
        (
            lambda tensors: {
                each.replace("self_attn", "attention"): value for each, value in tensors.items()
            },
            r"for another base: it adapts model\.layers\.0\.attention\.k_proj",
        ),
    ],
)
def test_tensors_that_are_refused(
    store: AdapterStore,
    sound: Path,
    tmp_path: Path,
    change: Callable[[dict[str, Any]], dict[str, Any]],
    message: str,
) -> None:
    with pytest.raises(WeightError, match=message):
        store.load(rewritten(tmp_path, sound, change))


def test_targets_by_expression_that_are_missing(
    store: AdapterStore, sound: Path, tmp_path: Path
) -> None:
    folder = rewritten(tmp_path, sound, _without("layers.1.mlp.up_proj"))
    path = folder / "adapter_config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps(config | {"target_modules": r".*\.(q|k|v|o|gate|down)_proj"}))
    assert len(store.load(folder).matrices) == 13
    path.write_text(json.dumps(config | {"target_modules": r".*_proj"}))
    with pytest.raises(WeightError, match=r"lacks targets: .*layers\.1\.mlp\.up_proj"):
        store.load(folder)


def test_files_that_are_missing(store: AdapterStore, sound: Path, tmp_path: Path) -> None:
    with pytest.raises(WeightError, match="is not a folder"):
        store.load(tmp_path / "nowhere")
    with pytest.raises(WeightError, match=r"cannot read .*: File name too long"):
        store.load(tmp_path / ("a" * 300))
    folder = changed(tmp_path, sound)
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")
    with pytest.raises(WeightError, match="never loaded"):
        store.load(folder)
    (folder / "adapter_config.json").unlink()
    with pytest.raises(WeightError, match="is no adapter"):
        store.load(folder)


def test_a_rank_that_there_is_no_room_for(store: AdapterStore, tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "a", tiny_checkpoint("llama"), rank=17, targets=("q_proj",))
    with pytest.raises(WeightError, match="start with --max-lora-rank 17"):
        store.load(folder)


def test_modules_in_some_layers(store: AdapterStore, sound: Path, tmp_path: Path) -> None:
    folder = rewritten(tmp_path, sound, _without("layers.1."))
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"layers_to_transform": [0]}))
    assert len(store.load(folder).matrices) == 7
