"""``penstock eval``: what it prints, keeps and refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.cli.eval_common import read_text
from penstock.cli.main import EXIT_FAILED, EXIT_USAGE, main
from penstock.demo_model import demo_model_path
from penstock.evaluate.text_model import TextModel

TEXT = "".join(f"for i in range({n}):\n    print(i, {n * n})\n" for n in range(120))


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.py"
    path.write_text(TEXT, encoding="utf-8")
    return path


def test_perplexity(text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = tmp_path / "out.json"
    words = ["eval", "perplexity", "--no-artifact", "--text", str(text), "--window", "64"]
    assert main([*words, "--max-windows", "3", "--json", str(kept)]) == 0
    document = json.loads(kept.read_text())
    printed = capsys.readouterr().out
    assert f"{document['perplexity']:.4f}" in printed
    assert document["tokens"] == 3 * 31
    assert document["windows"] == {"method": "llama.cpp", "tokens": 64, "count": 3}
    assert document["model"]["quantization"] == "none"
    assert len(document["text"][0]["sha256"]) == 64


def test_kl(text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = tmp_path / "out.json"
    words = ["eval", "kl", "--no-artifact", "--text", str(text), "--window", "64"]
    words += ["--quantization", "int4", "--quantization-group", "64", "--windows", "gptq"]
    assert main([*words, "--max-windows", "2", "--json", str(kept)]) == 0
    document = json.loads(kept.read_text())
    assert f"{document['agreement']:.2%}" in capsys.readouterr().out
    assert document["model"]["quantization_group"] == 64
    assert document["base"]["quantization"] == "none"
    assert document["model_perplexity"]["tokens"] == document["base_perplexity"]["tokens"] == 126
    assert 0 < document["kl_mean"] < 1


def test_agreement(text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = tmp_path / "out.json"
    words = ["eval", "agreement", "--no-artifact", "--text", str(text), "--prompts", "6"]
    words += ["--prompt-tokens", "20", "--tokens", "12", "--json", str(kept)]
    assert main([*words, "--quantization", "int4", "--quantization-group", "128"]) == 0
    document = json.loads(kept.read_text())
    assert f"{document['identical']:.2%} of 6" in capsys.readouterr().out
    assert document["model"]["quantization"] == "int4"
    assert document["base"]["quantization"] == "none"
    assert 0 < document["same_mean"] <= document["tokens"] == 12
    other = tmp_path / "other"  # of the same content
    other.mkdir()
    for file in demo_model_path().iterdir():
        other.joinpath(file.name).symlink_to(file)
    assert main([*words, "--base", str(other)]) == 0
    assert json.loads(kept.read_text())["identical"] == 1.0


@pytest.mark.parametrize("command", ["kl", "agreement"])
@pytest.mark.parametrize("named", [False, True])
def test_a_model_is_not_compared_with_itself(
    named: bool, command: str, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    link = tmp_path / "link"
    link.symlink_to(demo_model_path())
    base = ["--base", str(link)] if named else []
    assert main(["eval", command, "--no-artifact", "--text", str(text), *base]) == EXIT_USAGE
    assert "compared with itself: name what to compare it with by --base" in capsys.readouterr().err


def test_figures_are_printed_before_they_are_kept(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "out.json"
    words = ["eval", "perplexity", "--no-artifact", "--text", str(text), "--window", "64"]

    def full(path: Path, *args: object, **kwargs: object) -> None:
        assert not path.exists()  # what was tried at the beginning is gone
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr("penstock.cli.eval_perplexity.write_evaluation", full)
    assert main([*words, "--max-windows", "1", "--json", str(kept)]) == EXIT_FAILED
    printed = capsys.readouterr()
    assert "bits per byte" in printed.out
    assert "No space left" in printed.err


@pytest.mark.parametrize(
    ("content", "words", "said", "code"),
    [
        (b"short", [], "less than a window of 512", EXIT_USAGE),
        (b"caf\xe9 " * 2000, [], "not UTF-8 at byte 3", EXIT_USAGE),
        (TEXT.encode(), ["--window", "2"], "take at least 3", EXIT_USAGE),
        (TEXT.encode(), ["--window", "100000000"], "lower --window", EXIT_USAGE),
        (None, [], "No such file", EXIT_FAILED),
        (None, ["--window", "100000000"], "No such file", EXIT_FAILED),  # before a model is loaded
        (TEXT.encode(), ["--json", "nowhere/out.json"], "no folder nowhere", EXIT_USAGE),
        (TEXT.encode(), ["--json", "."], "is a folder", EXIT_USAGE),
        (None, ["--json", "/proc/x.json"], "/proc/x.json cannot be written", EXIT_USAGE),
    ],
)
def test_what_cannot_be_read(
    content: bytes | None,
    words: list[str],
    said: str,
    code: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "text"
    if content is not None:
        path.write_bytes(content)
    assert main(["eval", "perplexity", "--no-artifact", "--text", str(path), *words]) == code
    assert said in capsys.readouterr().err


def test_line_ends_stay_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"one\r\ntwo\r")
    (tmp_path / "b").write_bytes(b"\nthree\n")
    assert read_text([tmp_path / "a", tmp_path / "b"]) == "one\r\ntwo\r\nthree\n"


def test_types_of_a_base_are_those_of_dtype(text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["eval", "kl", "--no-artifact", "--text", str(text), "--base-dtype", "float99"]
    assert main(words) == EXIT_USAGE
    assert "--base-dtype" in capsys.readouterr().err


def test_the_base_may_have_a_kv_cache_of_its_own(text: Path, tmp_path: Path) -> None:
    words = ["eval", "kl", "--no-artifact", "--text", str(text), "--window", "64"]
    kept = tmp_path / "kept.json"
    words += ["--max-windows", "1", "--kv-cache-dtype", "int4", "--json", str(kept)]
    assert main(words) == EXIT_USAGE  # with itself
    assert main([*words, "--base-kv-cache-dtype", "float32"]) == 0
    assert json.loads(kept.read_text())["kl_mean"] > 0


def test_a_base_that_cuts_the_text_otherwise(
    text: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tokens of the same numbers are then others, and divergences mean nothing."""
    encode = TextModel.encode

    def other(self: TextModel, said: str) -> tuple[list[int], int | None]:
        tokens, bos = encode(self, said)
        is_base = self.engine_plan.config.quantization == "none"
        return (tokens[::-1] if is_base else tokens), bos

    monkeypatch.setattr(TextModel, "encode", other)
    words = ["eval", "kl", "--no-artifact", "--text", str(text), "--window", "64"]
    assert main([*words, "--quantization", "int8"]) == EXIT_USAGE
    assert "cuts the text into other tokens" in capsys.readouterr().err


def test_a_text_keeps_its_line_ends_and_loses_byte_order_marks(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_bytes(b"\xef\xbb\xbfa\r\nb\n")
    second.write_bytes(b"\xef\xbb\xbfc")
    assert read_text([first, second]) == "a\r\nb\nc"
