"""Training after rounding: what is written is what was trained, however it was interrupted."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from support.checkpoints import tiny_checkpoint
from support.log_probabilities import log_probabilities
from support.needs import needs_native
from support.quantized_checkpoints import edit_tensors
from support.quantized_runs import command

from penstock.cli import main as cli
from penstock.config import EngineConfig
from penstock.evaluate.text_model import TextModel
from penstock.evaluate.windows import Window
from penstock.interface.adjustable import Adjusted
from penstock.quantize.samples import training_text
from penstock.tokenizer.load import load_tokenizer
from penstock.train import fine_tuning
from penstock.weights.model_folder import load_model_spec

pytestmark = pytest.mark.slow

LENGTH = 48
METHODS = {
    "gptq": ["--method", "gptq", "--bits", 2, "--group-size", 32],
    "codes": ["--bits", 3, "--group-size", 32, "--asymmetric", "--fine-tune-codes"],
    "squeezellm": ["--method", "squeezellm", "--bits", 3],
    "nf4": ["--method", "nf4"],
}
SLOW = {
    "rtn": ["--bits", 3, "--group-size", "row", "--format", "gptq", "--asymmetric"],
    "by index": ["--method", "gptq", "--group-size", 32, "--act-order", "group"],
    "awq": ["--method", "awq", "--group-size", 32, "--format", "awq", "--asymmetric"],
    "smoothquant": ["--method", "smoothquant"],
    "fp4": ["--method", "fp4", "--no-double-quantization"],
    "quip": ["--method", "quip"],
    "magnitude": ["--method", "magnitude"],
    "bitmask": ["--method", "sparsegpt", "--format", "sparse-24-bitmask"],
    "sparse": ["--method", "magnitude", "--bits", 4, "--group-size", 32, "--fine-tune-codes"],
    "budget": ["--bits", "auto", "--budget", 4, "--group-size", 32],
}


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(" ".join(f"{n * n} of {n}" for n in range(300)))
    return path


@pytest.fixture(scope="module")
def model() -> Path:
    return tiny_checkpoint("qwen3", dtype="bfloat16", intermediate_size=96)


def given(text: Path, steps: int = 3) -> list[object]:
    words = ["--calibration", text, "--samples", 2, "--sample-length", LENGTH, "--threads", 1]
    return [*words, "--fine-tune", steps]


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def outcome(folder: Path) -> dict[str, Any]:
    record = json.loads((folder / "penstock_quantization.json").read_text())
    found: dict[str, Any] = record["fine_tuning"]
    return found


def divergence(out: Path, model: Path, text: Path) -> float:
    """The mean divergence on what training held out, as the reference backend computes it of the
    checkpoint in the folder ``out``."""
    tokenizer = load_tokenizer(model)
    held_out = training_text(tokenizer, text.read_text(), "", LENGTH, 0, 256).held_out
    found: list[np.ndarray[Any, Any]] = []
    configs = [
        EngineConfig(model=str(each), backend="reference", dtype="float32") for each in (out, model)
    ]
    # Kernels that multiply integers round activations, too, unless they are asked not to.
    quantized = load_model_spec(out).quantized
    if quantized is not None and quantized.schemes:
        configs[0] = msgspec.structs.replace(configs[0], quantize_activations=False)
    own, base = (TextModel.open(each, LENGTH + 1) for each in configs)
    with own, base:
        for ids in held_out:
            window = Window((*ids, 0), 1)  # whose last token is not read
            for logits, wanted in zip(own.logits(window), base.logits(window), strict=True):
                ours, theirs = log_probabilities(logits), log_probabilities(wanted)
                found.append((np.exp(theirs) * (theirs - ours)).sum(axis=1))
    return float(np.concatenate(found).mean())


def check_written(
    capsys: pytest.CaptureFixture[str], model: Path, text: Path, out: Path, words: list[object]
) -> None:
    code, said, err = command(capsys, model, "--out", out, *words, *given(text, 8))
    assert code == 0, err
    assert "8 steps of training: " in said
    found = outcome(out)
    assert found["kept"] == (found["after"] < found["before"])
    assert found["kept"] or "smoothquant" in words  # which loses next to nothing to begin with
    expected = found["after" if found["kept"] else "before"]
    assert divergence(out, model, text) == pytest.approx(expected, rel=1e-3, abs=1e-5)


@needs_native
@pytest.mark.parametrize("words", METHODS.values(), ids=METHODS.keys())
def test_what_is_written_is_what_was_trained(
    words: list[object],
    capsys: pytest.CaptureFixture[str],
    model: Path,
    text: Path,
    tmp_path: Path,
) -> None:
    check_written(capsys, model, text, tmp_path / "out", words)


@needs_native
@pytest.mark.slow
@pytest.mark.parametrize("words", SLOW.values(), ids=SLOW.keys())
def test_what_is_written_is_what_was_trained_in_other_formats(
    words: list[object],
    capsys: pytest.CaptureFixture[str],
    model: Path,
    text: Path,
    tmp_path: Path,
) -> None:
    check_written(capsys, model, text, tmp_path / "out", words)


@needs_native
def test_embeddings_are_rounded_while_others_are_trained(
    capsys: pytest.CaptureFixture[str], model: Path, text: Path, tmp_path: Path
) -> None:
    """An outlier in each row makes the points of its other weights few."""
    shutil.copytree(model, tmp_path / "model")

    def spread(table: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return np.concatenate([64 * table[:, :1], table[:, 1:]], axis=1)

    edit_tensors(tmp_path / "model", {"model.embed_tokens.weight": spread})
    words: list[object] = ["--bits", 4, "--group-size", 32, "--embedding-bits", 8]
    check_written(capsys, tmp_path / "model", text, tmp_path / "out", words)


class Killed(BaseException):
    """What ends a run wherever it is."""


def stops(after: int, calls: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, which ends the run in its ``after``-th call."""
    left = [after]

    def wrapped(*args: Any, **options: Any) -> Any:
        left[0] -= 1
        if not left[0]:
            raise Killed
        return calls(*args, **options)

    return wrapped


@needs_native
@pytest.mark.parametrize(
    ("name", "place", "after"),
    [
        ("penstock.train.fine_tuning._Training._step", fine_tuning._Training, 3),
        ("penstock.quantize.fine_tuning.write_tensors", None, 1),
        ("penstock.quantize.unfinished.write_tensors", None, 5),  # shards: 3, and 1 anew
        ("os.rename", os, 1),
    ],
)
def test_interrupted_runs_end_with_the_same_bytes(
    name: str,
    place: object,
    after: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    model: Path,
    text: Path,
    tmp_path: Path,
) -> None:
    words = ["--bits", 2, "--group-size", 32, "--asymmetric", *given(text, 4)]
    code, _, err = command(capsys, model, "--out", tmp_path / "whole", *words)
    assert code == 0, err
    monkeypatch.setattr(fine_tuning, "_SAVED_S", 0.0)
    monkeypatch.setattr(fine_tuning, "_SAVING", 0)
    with monkeypatch.context() as patch:
        module, _, attribute = name.rpartition(".")
        where = place or __import__(module, fromlist=[attribute])
        patch.setattr(where, attribute, stops(after, getattr(where, attribute)))
        with pytest.raises(Killed):
            command(capsys, model, "--out", tmp_path / "killed", *words)
    assert not (tmp_path / "killed").exists()
    code, _, err = command(capsys, model, "--out", tmp_path / "killed", *words)
    assert code == 0, err
    assert content(tmp_path / "killed") == content(tmp_path / "whole")
    assert not list(tmp_path.glob("*/hidden-*"))


@needs_native
def test_what_gains_nothing_is_not_kept(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    model: Path,
    text: Path,
    tmp_path: Path,
) -> None:
    words = ["--bits", 4, "--group-size", 32]
    code, _, err = command(capsys, model, "--out", tmp_path / "rounded", *words)
    assert code == 0, err
    trained = fine_tuning.fine_tune

    def no_better(*args: Any) -> Adjusted:
        found = trained(*args)
        return Adjusted(found.weights, found.after, found.after)

    monkeypatch.setattr(fine_tuning, "fine_tune", no_better)
    out = tmp_path / "out"
    code, said, err = command(capsys, model, "--out", out, *words, *given(text))
    assert code == 0, err
    assert "the checkpoint is as it was before" in said
    assert outcome(out)["kept"] is False
    for path in (tmp_path / "rounded").glob("*.safetensors"):
        assert path.read_bytes() == (out / path.name).read_bytes()


@needs_native
def test_variants_of_a_comparison_are_trained(
    capsys: pytest.CaptureFixture[str], model: Path, text: Path, tmp_path: Path
) -> None:
    out, words = tmp_path / "out", [*given(text), "--text", text, "--max-windows", 1]
    asked = ["rtn:2:32", "rtn:2:32:tuned"]
    code, _, err = command(capsys, model, "--out", out, *words, "--compare", *asked)
    assert code == 0, err
    assert (out / "rtn-2-32-tuned").is_dir()
    assert "fine_tune" not in json.loads((out / "rtn-2-32/penstock_quantization.json").read_text())
    assert outcome(out / "rtn-2-32-tuned")["kept"] is True


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--fine-tune", 3], "--fine-tune: needs a text to train on: --calibration FILE"),
        (["--fine-tune-codes"], "--fine-tune-codes: needs --fine-tune STEPS"),
        (["--method", "mxfp4", "TUNE"], "--fine-tune has nothing to train in this format"),
        (["--method", "nf4", "--fine-tune-codes", "TUNE"], "--fine-tune-codes is of integers"),
        (["TUNE", "--sample-length", 250], "of which --fine-tune holds out a tenth"),
        (["TUNE", "--sample-length", 999], "the model has 256 positions"),
        (
            ["--compare", "rtn:4:32:tuned", "--text", "TEXT"],
            "rtn:4:32:tuned needs --fine-tune STEPS",
        ),
    ],
)
def test_what_cannot_be_trained(
    words: list[object],
    message: str,
    capsys: pytest.CaptureFixture[str],
    model: Path,
    tmp_path: Path,
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("The quick brown fox jumps over the lazy dog. " * 30)
    files: dict[object, list[object]] = {"TUNE": given(text), "TEXT": [text]}
    whole = [each for word in words for each in files.get(word, [word])]
    code, _, err = command(capsys, model, "--out", tmp_path / "out", *whole)
    assert code != 0
    assert message in err
    assert {path.name for path in tmp_path.iterdir()} == {"text.txt"}


@needs_native
def test_training_without_what_trains(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    model: Path,
    text: Path,
    tmp_path: Path,
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "penstock.train.fine_tuning", None)
    code, _, err = command(capsys, model, "--out", tmp_path / "out", *given(text))
    assert code == cli.EXIT_USAGE
    assert "--fine-tune needs torch and transformers: pip install 'penstock[train]'" in err
