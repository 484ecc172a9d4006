"""A restored engine computes the bits of the one that was packed."""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from support.artifact_engines import start
from support.checkpoints import tiny_checkpoint

from penstock import LLM, SamplingParams
from penstock.artifact import session
from penstock.config import EngineConfig
from penstock.engine.loader import load, plan_engine
from penstock.errors import WeightError
from penstock.weights.checkpoint import open_weights

KINDS: list[dict[str, Any]] = [
    {"dtype": "float32"},
    {"dtype": "float16"},
    {"dtype": "bfloat16"},
    {"quantization": "int8"},
    {"quantization": "int8", "quantization_group": 0, "quantize_head": False},
    {"quantization": "int4"},
    {"quantization": "int4", "dtype": "float32"},
    {
        "quantization": "int4",
        "quantization_group": 32,
        "quantization_zero_points": True,
        "quantize_activations": False,
    },
]


@pytest.mark.thinned(3)
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("kind", KINDS, ids=lambda k: " ".join(map(str, k.values())))
def test_the_second_start_gives_the_same_bits(
    configure: Any, tmp_path: Path, kind: dict[str, Any], tied: bool
) -> None:
    model = configure(tie_word_embeddings=tied)
    root = tmp_path / "engines"
    first = start(model, root, **kind)
    assert first.phases == ["open weights", "pack weights", "keep artifact"]
    second = start(model, root, **kind)
    assert second.phases == ["restore weights"]
    assert second.logits == first.logits
    logits = np.frombuffer(second.logits, np.float32)
    assert np.isfinite(logits).all()
    assert len(np.unique(logits)) > 1000
    # What is restored is what the file says: an engine with other weights has other logits.
    assert start(model, root, **kind, seed=1).logits != first.logits


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "lfm2", "lfm2_moe"])
def test_weights_of_a_checkpoint(family: str, tmp_path: Path) -> None:
    model = tiny_checkpoint(family, tie_word_embeddings=False)
    root = tmp_path / "engines"
    first, second = (start(model, root, load_format="auto", quantization="int8") for _ in range(2))
    assert not first.restored
    assert second.restored
    assert second.logits == first.logits


def test_limits_and_threads_are_not_part_of_what_is_kept(configure: Any, tmp_path: Path) -> None:
    model, root = configure(), tmp_path / "engines"
    first = start(model, root)
    for options in (
        {"threads": 1},
        {"threads": 3},
        {"max_model_len": 64, "max_num_seqs": 2, "max_num_batched_tokens": 32},
        {"kv_cache_bytes": 1 << 20},
    ):
        second = start(model, root, **options)
        assert second.restored
        assert second.logits == first.logits


def test_several_batches(configure: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.artifact.format._BATCH_BYTES", 1)
    model, root = configure(), tmp_path / "engines"
    first, second = start(model, root), start(model, root)
    assert second.restored
    assert second.logits == first.logits


def test_regions_hold_all_weights(configure: Any, tmp_path: Path) -> None:
    """Each is there by name, as often as the plan has it; the embedding's bytes are the
    checkpoint's."""
    config = EngineConfig(model=str(configure()), load_format="dummy", artifact=False)
    engine_plan = plan_engine(config)
    executor = load(engine_plan)
    assert executor.packed is not None
    names = [name for region in executor.packed.names for name in region.split("+")]
    expected = [weight for op in engine_plan.plan.ops for weight in op.weights]
    assert sorted(names) == sorted(expected)
    assert executor.packed.sizes[executor.packed.names.index("embed")] == 300 * 96 * 2
    executor.close()


def test_small_models_are_packed_every_time(
    configure: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    root = tmp_path / "engines"
    for _ in range(2):
        done = start(configure(f"tiny{_}"), root, keeping="worthwhile")
        assert done.phases == ["open weights", "pack weights"]
        assert done.notes == []
    assert not root.exists()


def test_what_takes_long_to_pack_is_kept_by_the_way(
    configure: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(session, "WORTHWHILE_S", 0.0)
    caplog.set_level(logging.INFO, "penstock.artifact")
    options = {"load_format": "dummy", "artifact_dir": str(tmp_path / "engines"), "threads": 1}
    model = str(configure())
    texts = []
    for _ in range(2):
        with LLM(model, **options) as llm:
            params = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
            texts.append(llm.generate({"prompt_token_ids": [5, 6, 7]}, params)[0].outputs[0])
    assert texts[0].token_ids == texts[1].token_ids
    wrote, restored = caplog.records
    assert wrote.levelno == logging.WARNING
    assert wrote.getMessage().startswith("wrote ")
    assert str(tmp_path / "engines" / "tiny-bfloat16-") in wrote.getMessage()
    assert restored.getMessage().startswith("restored ")


def test_off_means_off(configure: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "WORTHWHILE_S", 0.0)
    monkeypatch.setenv("PENSTOCK_CACHE_DIR", str(tmp_path / "cache"))
    model = configure()
    first = start(model, None, "worthwhile", artifact=False)
    assert first.phases == ["open weights", "pack weights"]
    assert not (tmp_path / "cache").exists()
    assert start(model, None, "worthwhile").phases[-1] == "keep artifact"
    assert (tmp_path / "cache" / "engines").is_dir()
    assert not start(model, None, "worthwhile", artifact=False).restored
    assert start(model, None, "worthwhile").restored


@pytest.mark.parametrize("change", ["touched", "gone"])
def test_a_checkpoint_that_changes_while_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """Nobody can say which files the packed weights are of; the engine starts all the same."""
    model, root = tmp_path / "model", tmp_path / "engines"
    shutil.copytree(tiny_checkpoint("llama"), model)

    def open_and_change(*args: Any, **options: Any) -> Any:
        weights = open_weights(*args, **options)
        weights.get("embed")  # maps the file, which may then lose its name
        if change == "gone":
            (model / "model.safetensors").unlink()
        else:
            os.utime(model / "model.safetensors", ns=(0, 0))
        return weights

    monkeypatch.setattr("penstock.weights.checkpoint.open_weights", open_and_change)
    monkeypatch.setattr(session, "WORTHWHILE_S", 0.0)
    done = start(model, root, "worthwhile", load_format="auto")
    assert done.notes == [
        "no engine artifact is kept: the checkpoint has changed while it was read"
    ]
    assert done.logits
    assert not root.exists()


def test_non_finite_weights_leave_nothing_behind(tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(tiny_checkpoint("llama"), model)
    tensors = load_file(model / "model.safetensors")
    broken = tensors["model.layers.1.mlp.up_proj.weight"].copy()
    broken[3, 4] = np.nan
    tensors["model.layers.1.mlp.up_proj.weight"] = broken
    save_file(tensors, model / "model.safetensors")
    with pytest.raises(WeightError, match=r"layers\.1\.up has values that are not finite"):
        start(model, tmp_path / "engines", load_format="auto", quantization="int4")
    assert not (tmp_path / "engines").exists()
