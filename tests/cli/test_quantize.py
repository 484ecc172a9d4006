"""``penstock quantize``: its words, and what it says."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
from support.checkpoints import tiny_checkpoint
from support.needs import needs_native
from support.quantized_runs import command

from penstock.cli import main as cli

SHAPE = {"intermediate_size": 96}


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("The quick brown fox jumps over the lazy dog. " * 40)
    return path


def test_nearest(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    model = tiny_checkpoint("llama", **SHAPE)
    out = tmp_path / "out"
    code, said, err = command(capsys, model, "--out", out, "--group-size", "row", "--bits", 8)
    assert code == 0, err
    assert said.startswith(f"{out}: 14 matrices, ")
    section = json.loads((out / "config.json").read_text())["quantization_config"]
    assert section["config_groups"]["group_0"]["weights"]["num_bits"] == 8
    assert section["config_groups"]["group_0"]["weights"]["strategy"] == "channel"


@needs_native
def test_gptq_and_what_is_recorded_of_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: Path
) -> None:
    model = tiny_checkpoint("qwen3", dtype="bfloat16", **SHAPE)
    out = tmp_path / "out"
    words = ["--method", "gptq", "--group-size", 32, "--calibration", text, "--samples", 4]
    code, said, err = command(capsys, model, "--out", out, *words, "--sample-length", 64)
    assert code == 0, err
    assert "squared error of outputs: mean " in said
    record = json.loads((out / "penstock_quantization.json").read_text())
    assert record["method"] == "gptq"
    assert record["group_size"] == 32
    assert record["calibration"].startswith("4 windows of 64 tokens, drawn with seed 0, of a text")
    code, said, err = command(capsys, out, "--out", tmp_path / "again")
    assert code == cli.EXIT_FAILED
    assert "the checkpoint is quantized already" in err


@pytest.mark.parametrize(
    ("method", "quant_method"),
    [
        ("fp8", "compressed-tensors"),
        ("mxfp4", "compressed-tensors"),
        ("nvfp4", "compressed-tensors"),
        ("nf4", "bitsandbytes"),
        ("fp4", "bitsandbytes"),
    ],
)
def test_small_floats(
    method: str, quant_method: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    model, out = tiny_checkpoint("llama", **SHAPE), tmp_path / "out"
    code, _, err = command(capsys, model, "--out", out, "--method", method)
    assert code == 0, err
    section = json.loads((out / "config.json").read_text())["quantization_config"]
    assert section["quant_method"] == quant_method


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--method", "gptq"], "--method gptq needs a text: --calibration FILE"),
        (
            ["--calibration", "TEXT"],
            "is of --method gptq, awq, quip, sparsegpt, squeezellm, smoothquant alone",
        ),
        (["--damping", "0.1"], "--damping: is of --method gptq, sparsegpt, quip alone"),
        (["--act-order", "none"], "--act-order: is of --method gptq alone"),
        (["--method", "fp8", "--bits", "8"], "--bits: is of --method rtn, gptq, awq, magnitude"),
        (["--method", "nf4", "--scales", "block"], "--scales: is of --method fp8 alone"),
        (["--method", "fp8", "--double-quantization"], "--double-quantization: is of --method nf4"),
        (["--method", "gptq", "--damping", "0"], "--damping: must be over 0 and at most 1"),
        (["--method", "gptq", "--damping", "nan"], "--damping: must be over 0 and at most 1"),
        (["--bits", "5"], "--bits"),
        (["--group-size", "48"], "must be 32, 64, 128 or row, not '48'"),
        (["--group-size", "64"], "no whole groups of 64; take --group-size 32"),
        (
            ["--method", "gptq", "--calibration", "TEXT", "--sample-length", "999"],
            "--sample-length 999: the model has 256 positions",
        ),
        (
            ["--method", "gptq", "--calibration", "SHORT"],
            "has 5 tokens, and samples of 256 want twice that",
        ),
        (["--method", "gptq", "--calibration", "missing.txt"], "missing.txt"),
        (["--max-windows", "3"], "--max-windows: is of --compare alone; leave it out"),
        (
            ["--bits", "auto", "--budget", "3", "--method", "quip", "--calibration", "TEXT"],
            "--bits: auto is of --method rtn, gptq, awq alone, not of quip",
        ),
        (
            ["--bits", "auto", "--budget", "3", "--method", "magnitude"],
            "--bits: auto is of --method rtn, gptq, awq alone, not of magnitude",
        ),
        (
            ["--compare", "rtn:4:row", "--text", "TEXT", "--damping", "0.1"],
            "--damping: is of none of the methods of --compare; leave it out",
        ),
        (
            ["--compare", "rtn:4:row", "--text", "TEXT", "--fine-tune", "3"],
            "--fine-tune: is of none of the methods of --compare; :tuned behind a method asks for",
        ),
        (
            ["--compare", "rtn:4:row", "--text", "TEXT", "--out", "TEXT"],
            "text.txt is no folder; name another",
        ),
        (
            ["--compare", "rtn:4:row", "--text", "TEXT", "--out", "nowhere/out"],
            "--out: there is no folder nowhere; make it first",
        ),
        (["--out", "nowhere/out"], "--out: there is no folder nowhere; make it first"),
    ],
)
def test_words_that_cannot_be_honoured(
    words: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    text: Path,
    tmp_path: Path,
) -> None:
    short = tmp_path / "short.txt"
    short.write_text("Short")
    files = {"TEXT": str(text), "SHORT": str(short)}
    out = tmp_path / "out"
    given = [files.get(word, word) for word in words]
    code, said, err = command(capsys, tiny_checkpoint("llama", **SHAPE), "--out", out, *given)
    assert code != 0
    assert said == ""
    assert message in err
    assert {path.name for path in tmp_path.iterdir()} == {"text.txt", "short.txt"}


@needs_native
def test_too_little_text_is_said_of_any_model(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: Path
) -> None:
    """Three tokens are less than a sixteenth of 64 columns."""
    words = ["--method", "gptq", "--group-size", 32, "--calibration", text, "--samples", 1]
    model, out = tiny_checkpoint("llama", **SHAPE), tmp_path / "out"
    code, said, err = command(capsys, model, "--out", out, *words, "--sample-length", 3)
    assert code == 0, err
    assert "14 matrices multiply too little of the text to calibrate them" in said
    assert "experts" not in said


def test_a_text_needs_a_tokenizer(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: Path
) -> None:
    """What is said to do is something that this command can."""
    model, out = tmp_path / "model", tmp_path / "out"
    shutil.copytree(tiny_checkpoint("llama", **SHAPE), model)
    (model / "tokenizer.json").unlink()
    words = [model, "--out", out, "--group-size", 32]
    code, _, err = command(capsys, *words, "--method", "gptq", "--calibration", text)
    assert code == cli.EXIT_FAILED
    assert "has no tokenizer, so no text can be read; download the checkpoint again" in err
    assert "--tokenizer" not in err
    assert command(capsys, *words)[0] == 0


def test_a_file_is_no_folder(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    code, _, err = command(capsys, tmp_path / "model.gguf", "--out", tmp_path / "out")
    assert code == cli.EXIT_FAILED
    assert "is no folder of a Hugging Face checkpoint" in err


@needs_native
def test_gradients_without_what_computes_them(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    text: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "penstock.train.squared_gradients", None)
    words = ["--method", "squeezellm", "--sensitivity", "gradients", "--calibration", text]
    model, out = tiny_checkpoint("llama", **SHAPE), tmp_path / "out"
    code, _, err = command(capsys, model, "--out", out, *words, "--sample-length", 64)
    assert code != 0
    assert "pip install 'penstock[train]', or take --sensitivity inputs" in err
    assert not out.exists()
