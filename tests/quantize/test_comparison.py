"""Variants beside each other."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.checkpoints import tiny_checkpoint
from support.needs import needs_native

from penstock.backends.registry import backend
from penstock.cli import main as cli
from penstock.quantize.comparison import bits_per_weight, frontier
from penstock.quantize.forms.bitsandbytes import Bnb4
from penstock.quantize.forms.form import Form
from penstock.quantize.forms.integers import STORAGES, Integers
from penstock.quantize.forms.small_floats import Mxfp4
from penstock.quantize.grid import IntegerGrid
from penstock.quantize.methods import RoundToNearest
from penstock.quantize.quantization import Quantization
from penstock.quantize.run import quantize
from penstock.quantize.source import SourceModel

SHAPE = {"intermediate_size": 96}


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=8))
def test_the_frontier_is_what_nothing_beats(pairs: list[tuple[int, int]]) -> None:
    best = frontier([cost for cost, _ in pairs], [loss for _, loss in pairs])
    assert any(best)
    for (cost, loss), is_best in zip(pairs, best, strict=True):
        beaten = any((c < cost and at <= loss) or (c <= cost and at < loss) for c, at in pairs)
        assert is_best is not beaten


@pytest.mark.parametrize(
    ("form", "bits"),
    [
        (Integers(IntegerGrid(4, 32, True, "float32"), STORAGES["compressed-tensors"]), 5.0),
        (Integers(IntegerGrid(3, 32, False, "float16"), STORAGES["gptq"]), 3.6),
        (Mxfp4(), 4.25),
        (Bnb4("nf4", False, "float32"), 4.5),
    ],
    ids=str,
)
def test_bits_of_a_weight(form: Form, bits: float, tmp_path: Path) -> None:
    """With scales and zero points, and the little that formats have beside for each matrix."""
    folder = tiny_checkpoint("phi3", hidden_size=128, intermediate_size=128)
    work = Quantization(SourceModel(folder), RoundToNearest(form))
    quantize(work, tmp_path / "out", backend("reference").bind, 1)
    assert bits <= bits_per_weight(tmp_path / "out") < bits + 0.2


def run(capsys: pytest.CaptureFixture[str], *argv: object) -> tuple[int, str, str]:
    capsys.readouterr()
    code = cli.main(["quantize", *map(str, argv)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.slow
@needs_native
def test_methods_are_made_judged_and_drawn(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("The quick brown fox jumps over the lazy dog. " * 40)
    model = tiny_checkpoint("llama", max_position_embeddings=1024, **SHAPE)
    out = tmp_path / "out"
    words = [model, "--out", out, "--text", text, "--calibration", text, "--max-windows", 1]
    words += ["--samples", 2, "--sample-length", 64, "--compare"]
    asked = ["rtn:8:row", "rtn:4:32", "gptq:4:32", "nf4", "rtn:auto=6:32", "magnitude"]
    code, said, err = run(capsys, *words, *asked)
    assert code == 0, err
    assert "note: nf4: a matrix has rows that are no whole number of 64 columns" in err
    document = json.loads((out / "comparison.json").read_text())
    variants = {each["name"]: each for each in document["variants"]}
    assert list(variants) == ["as it is", *asked]
    assert 5 < variants["rtn:auto=6:32"]["bits_per_weight"] <= 6
    assert variants["magnitude"]["bits_per_weight"] == 32
    assert variants["as it is"]["kl_mean"] == 0
    assert variants["as it is"]["same_top"] == 1
    assert 0 < variants["rtn:8:row"]["kl_mean"] < variants["rtn:4:32"]["kl_mean"]
    assert variants["rtn:4:32"]["num_bytes"] < variants["rtn:8:row"]["num_bytes"]
    assert all(each["decode_tokens_per_s"] > 0 for each in variants.values())
    assert "rtn:8:row" in said
    assert (out / "comparison.svg").read_text().startswith("<svg")
    code, said, err = run(capsys, *words, "rtn:8:row")  # neither made nor judged again
    assert code == 0, err
    again = json.loads((out / "comparison.json").read_text())["variants"]
    assert again == document["variants"]  # tokens/s would differ otherwise
    assert "rtn:4:32" in said  # what was not asked for again
    shutil.rmtree(out / "nf4")
    (out / "magnitude").rename(tmp_path / "elsewhere")
    (out / "rtn-4-32").rename(out / "magnitude")
    code, _, err = run(capsys, *words, "nf4")
    assert code == 0, err
    assert "was of other checkpoints: rtn:4:32, nf4, magnitude;" in err
    assert "judged before, by the same, which are not asked for and stay" in err
    again = json.loads((out / "comparison.json").read_text())["variants"]
    kept = ["as it is", "rtn:8:row", "gptq:4:32", "rtn:auto=6:32"]
    assert {each["name"] for each in again} == {*kept, "nf4"}
    assert all(each == variants[each["name"]] for each in again if each["name"] in kept)
    assert again[1]["kl_mean"] == variants["nf4"]["kl_mean"]
    code, _, err = run(capsys, *words, "gptq:4:32", "--samples", 3)
    assert code == cli.EXIT_USAGE
    assert "was made with another calibration; remove it" in err


@needs_native
def test_a_variant_of_other_options_is_refused_before_others_are_made(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Be it whole or unfinished, and wherever it stands among those that are asked for."""
    text, out = tmp_path / "text.txt", tmp_path / "out"
    text.write_text("The quick brown fox jumps over the lazy dog. " * 40)
    model = tiny_checkpoint("llama", max_position_embeddings=1024, **SHAPE)
    out.mkdir()
    code, _, err = run(capsys, model, "--out", out / "rtn-8-32", "--group-size", "row")
    assert code == 0, err
    words = [model, "--out", out, "--text", text, "--compare", "rtn:4:row", "rtn:8:32"]
    code, _, err = run(capsys, *words)
    assert code == cli.EXIT_USAGE
    assert "rtn-8-32 was made with another bits and group_size; remove it" in err
    (out / "rtn-8-32").rename(out / "rtn-8-32.partial")
    code, _, err = run(capsys, *words)
    assert code == cli.EXIT_USAGE
    assert "rtn-8-32.partial has what was done with another bits and group_size" in err
    assert [each.name for each in out.iterdir()] == ["rtn-8-32.partial"]


@pytest.mark.slow
@needs_native
def test_killed_between_variants_it_judges_the_rest(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("The quick brown fox jumps over the lazy dog. " * 40)
    model = tiny_checkpoint("llama", max_position_embeddings=1024, **SHAPE)
    found = tmp_path / "out" / "comparison.json"
    asked = ["rtn:8:row", "rtn:4:32", "nf4"]

    def command(text: Path, *more: str) -> list[str]:
        words = [model, "--out", found.parent, "--text", text, "--compare", *asked, *more]
        return [sys.executable, "-m", "penstock", "quantize", *map(str, words)]

    def judged() -> dict[str, dict[str, object]]:
        document = json.loads(found.read_text())
        return {each["name"]: each for each in document["variants"]}

    with subprocess.Popen(command(text), stderr=subprocess.PIPE) as process:
        while not found.exists() or len(judged()) < 2:
            assert process.poll() is None
            time.sleep(0.01)
        process.kill()
    before = judged()
    assert len(before) < 4
    again = subprocess.run(command(text), capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    assert "judged before, by the same: rtn:8:row" in again.stderr
    whole = judged()
    assert list(whole) == ["as it is", *asked]
    assert {name: whole[name] for name in before} == before  # tokens/s as well

    text.write_text("Five quacking zephyrs jolt my wax bed. " * 40)
    again = subprocess.run(
        command(text, "--max-windows", "1"), capture_output=True, text=True, check=True
    )
    assert "was of another text and number of windows" in again.stderr
    others = judged()
    assert all(others[name]["perplexity"] != whole[name]["perplexity"] for name in whole)
    found.write_bytes(found.read_bytes()[:-100])
    again = subprocess.run(
        command(text, "--max-windows", "1"), capture_output=True, text=True, check=True
    )
    assert "comparison.json cannot be read" in again.stderr
    assert judged().keys() == others.keys()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--compare", "rtn"], "--compare: needs --text FILE"),
        (["--compare", "best", "--text", "TEXT"], "best begins with none of rtn, gptq"),
        (["--compare", "rtn:5", "--text", "TEXT"], "rtn:5 is not METHOD[:BITS[:GROUP]]"),
        (["--compare", "rtn:auto=x", "--text", "TEXT"], "rtn:auto=x is not METHOD[:BITS"),
        (["--compare", "magnitude:auto=4", "--text", "TEXT"], "magnitude:auto=4 is not METHOD"),
        (["--compare", "rtn:auto=4", "--text", "TEXT"], "rtn:auto=4 needs --calibration FILE"),
        (["--compare", "nf4:4", "--text", "TEXT"], "nf4:4 is not METHOD"),
        (["--compare", "rtn", "gptq:4", "--text", "TEXT"], "gptq:4 needs --calibration FILE"),
        (["--text", "TEXT"], "--text: is of --compare alone"),
        (
            ["--compare", "rtn:4:32", "--text", "TEXT"],
            "--text has 6 tokens, fewer than a window of",
        ),
        (["--compare", "rtn:4:64", "--text", "TEXT"], "no whole groups of 64; take --group-size"),
        (["--compare", "rtn", "--bits", "4"], "--bits: --compare names methods and bits"),
    ],
)
def test_comparisons_that_cannot_be_made(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("Short.")
    given = [str(text) if word == "TEXT" else word for word in words]
    model = tiny_checkpoint("llama", **SHAPE)
    code, _, err = run(capsys, model, "--out", tmp_path / "out", *given)
    assert code != 0
    assert message in err
