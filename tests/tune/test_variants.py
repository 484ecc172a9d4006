"""Quantized variants of a model among what is searched."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.calibrations import demo_calibration
from support.checkpoints import tiny_checkpoint
from support.needs import needs_native

from penstock.backends.registry import backend
from penstock.cli import main as cli
from penstock.config import EngineConfig
from penstock.errors import ConfigError
from penstock.hardware import detect
from penstock.profile import Profile
from penstock.quantize.forms.integers import STORAGES, Integers
from penstock.quantize.grid import IntegerGrid
from penstock.quantize.methods import RoundToNearest
from penstock.quantize.quantization import Quantization
from penstock.quantize.run import quantize
from penstock.quantize.source import SourceModel
from penstock.simulate.configuration import Configuration
from penstock.simulate.machine_setups import Planned
from penstock.simulate.stage_times import read_bytes
from penstock.tune.variants import Variants, guessed
from penstock.written_file import write_json

CPU = "a CPU"


@pytest.fixture(scope="module")
def model() -> Path:
    return tiny_checkpoint("llama", intermediate_size=96)


def variant(name: str, loss: float, num_bytes: int, folder: str | None) -> dict[str, Any]:
    return {
        "name": name,
        "num_bytes": num_bytes,
        "bits_per_weight": None if folder is None else 4.5,
        "perplexity": 9.0,
        "kl_mean": loss,
        "kl_p99": loss,
        "same_top": 0.9,
        "decode_tokens_per_s": 40.0 if folder is None else 50.0,
        "seconds": None,
        "folder": folder,
    }


@pytest.fixture
def comparison(model: Path, tmp_path: Path) -> Path:
    """Two variants of the model, of 4 and of 8 bits."""
    for bits in (4, 8):
        form = Integers(IntegerGrid(bits, 32, True, "float32"), STORAGES["compressed-tensors"])
        work = Quantization(SourceModel(model), RoundToNearest(form))
        quantize(work, tmp_path / f"rtn-{bits}-32", backend("reference").bind, 1)
    path = tmp_path / "comparison.json"
    document = {
        "comparison": "quantization",
        "windows": 10,
        "window": 512,
        "cpu": CPU,
        "variants": [
            variant("as it is", 0.0, 400, None),
            variant("rtn:4:32", 0.2, 100, "rtn-4-32"),
            variant("rtn:8:32", 0.01, 200, "rtn-8-32"),
        ],
    }
    path.write_text(json.dumps(document))
    return path


def test_variants_within_a_limit(comparison: Path, model: Path) -> None:
    found = Variants.read(comparison, model, 0.5, CPU)
    folders = [str(comparison.parent.resolve() / each) for each in ("rtn-8-32", "rtn-4-32")]
    assert list(found.found) == folders  # the largest first
    assert [found.name(each) for each in (*folders, "another")] == [
        "rtn:8:32",
        "rtn:4:32",
        "as it is",
    ]
    fewer = Variants.read(comparison, model, 0.1, CPU)
    assert list(fewer.found) == folders[:1]
    assert [each.name for each in fewer.others] == ["rtn:4:32"]
    assert fewer.note("another") is None
    note = fewer.note(folders[0])
    assert note is not None
    assert "0.0100 nats a token from the model as it is, as 10 windows of 512 tokens told" in note
    assert found.gained_s(folders[1], str(model)) == pytest.approx(1 / 40 - 1 / 50)
    assert found.gained_s(folders[1], "another") is None
    assert Variants.read(comparison, model, 0.1, "another CPU").gained_s(*folders) is None
    assert Variants.read(comparison, Path(folders[1]), 0.1, CPU).found.keys() == fewer.found.keys()


def test_comparisons_that_cannot_be_used(comparison: Path, model: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"loses more; least rtn:8:32, with 0\.0100"):
        Variants.read(comparison, model, 0.001, CPU)
    with pytest.raises(ConfigError, match=r"is of another model than .* its weights are others"):
        Variants.read(comparison, tiny_checkpoint("llama", seed=7, intermediate_size=96), 1, CPU)
    with pytest.raises(ConfigError, match="must be the folder of the model that was compared"):
        Variants.read(comparison, tmp_path / "none", 1, CPU)
    with pytest.raises(ConfigError, match="No such file"):
        Variants.read(tmp_path / "none.json", model, 1, CPU)
    document = json.loads(comparison.read_text())
    comparison.write_text(json.dumps({**document, "comparison": "loads"}))
    with pytest.raises(ConfigError, match="is a comparison of loads, not of quantization"):
        Variants.read(comparison, model, 1, CPU)
    comparison.write_text(json.dumps({**document, "variants": document["variants"][:1]}))
    with pytest.raises(ConfigError, match="has no variants"):
        Variants.read(comparison, model, 1, CPU)
    comparison.write_text("{}")
    with pytest.raises(ConfigError, match="is no comparison"):
        Variants.read(comparison, model, 1, CPU)
    comparison.write_text(json.dumps(document))
    (tmp_path / "rtn-4-32").rename(tmp_path / "moved")
    with pytest.raises(ConfigError, match="rtn-4-32 is not there any more"):
        Variants.read(comparison, model, 1, CPU)


@needs_native
def test_steps_that_were_not_measured_are_those_of_the_model_by_bytes(
    comparison: Path, model: Path
) -> None:
    def planned(folder: Path) -> Planned:
        asked = Configuration("", EngineConfig(model=str(folder), backend="cpu"))
        return Planned.of(asked, detect())

    base, own = planned(model), planned(comparison.parent / "rtn-4-32")
    known = demo_calibration(str(model))
    made = guessed(own, base, [demo_calibration(), known], None)
    assert made is not None
    assert made.words == "scaled with the bytes of weights"
    assert made.calibration.key == own.key != base.key
    ratio = read_bytes(own.engine_plan.plan) / read_bytes(base.engine_plan.plan)
    assert 0 < ratio < 0.9
    rows, first = made.calibration.steps.rows, known.steps.rows[0]
    assert rows[0] == pytest.approx(first * ratio)
    gains = [a - b for a, b in zip(known.steps.rows, rows, strict=True)]
    assert gains == pytest.approx([gains[0]] * len(gains))
    timed = guessed(own, base, [known], -0.25 * first)  # slower, for all its fewer bytes
    assert timed is not None
    assert "has timed" in timed.words
    assert timed.calibration.steps.rows[0] == pytest.approx(1.25 * first)
    more = guessed(own, base, [known], 2 * first)  # more than there is: of another machine
    assert more == made
    assert guessed(own, base, [demo_calibration()], None) is None
    other = msgspec.structs.replace(
        known, key=msgspec.structs.replace(known.key, threads=known.key.threads + 1)
    )
    assert guessed(own, base, [other], None) is None


@pytest.fixture
def words(comparison: Path, model: Path, tmp_path: Path) -> list[str]:
    trace, here = tmp_path / "trace.csv", tmp_path / "here.json"
    lines = ["TIMESTAMP,ContextTokens,GeneratedTokens"]
    lines += [f"{i // 8 * 0.5},{30 + i % 8},{5 + i % 7}" for i in range(32)]
    trace.write_text("\n".join(lines) + "\n")
    write_json(here, demo_calibration(str(model)))
    return [
        *("tune", str(model), "--backend", "cpu", "--trace", str(trace)),
        *("--calibration", str(here), "--objective", "e2el", "--no-verify", "--candidates", "8"),
        *("--out", str(tmp_path / "profile.json"), "--variants", str(comparison)),
    ]


@needs_native
def test_a_guess_is_told_and_not_chosen(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The variants of fewer bytes are faster by a guess alone."""
    assert cli.main([*words, "--max-loss", "0.05"]) == 0
    out = capsys.readouterr().out
    made = Profile.read(Path(words[words.index("--out") + 1]))
    assert ", model)" in out
    assert "steps of rtn:8:32 were not measured" in out
    assert any("is predicted to be better, by a guess" in note for note in made.notes)
    assert any("were not tried: rtn:4:32 (0.2000)" in note for note in made.notes)
    assert "variant=rtn:8:32" not in out.partition("chosen")[2].partition("\n")[0]


@needs_native
def test_a_variant_that_was_calibrated_is_chosen(
    words: list[str], comparison: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str((comparison.parent / "rtn-8-32").resolve())
    known = demo_calibration(folder)
    faster = tuple(seconds / 3 for seconds in known.steps.rows)
    steps = msgspec.structs.replace(known.steps, rows=faster)
    fast = tmp_path / "fast.json"
    write_json(fast, msgspec.structs.replace(known, steps=steps))
    assert cli.main([*words, "--max-loss", "0.05", "--calibration", str(fast)]) == 0
    out = capsys.readouterr().out
    assert "chosen   variant=rtn:8:32" in out or ",variant=rtn:8:32" in out
    assert f"penstock serve {folder} --profile" in out
    made = Profile.read(Path(words[words.index("--out") + 1]))
    assert made.made_for.model.name == "rtn-8-32"
    assert any(note.startswith("the model is rtn:8:32, in ") for note in made.notes)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ([], "--variants: needs --max-loss NATS"),
        (["--max-loss", "1", "--quantization", "int8"], "leave --quantization out"),
        (["--max-loss", "1", "--allow", "int4"], "int4 would round variants again"),
        (["--max-loss", "0"], "--max-loss"),
    ],
)
def test_options_that_do_not_go_together(
    more: list[str], message: str, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*words, *more]) == cli.EXIT_USAGE
    assert message in capsys.readouterr().err
