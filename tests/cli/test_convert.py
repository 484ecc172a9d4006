"""``penstock convert``: its words, and what it says."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.checkpoints import tiny_checkpoint

from penstock.cli import main as cli
from penstock.errors import ModelError
from penstock.gguf.metadata import read_metadata


def run(capsys: pytest.CaptureFixture[str], *argv: object) -> tuple[int, str, str]:
    capsys.readouterr()  # what making a checkpoint has said
    code = cli.main(["convert", *map(str, argv)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_a_file_and_a_folder(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    model = tiny_checkpoint("mistral", sliding_window=16)
    code, out, err = run(capsys, model, tmp_path / "m.gguf", "--type", "q8_0", "--threads", 2)
    assert code == 0, err
    assert out.startswith(f"{tmp_path / 'm.gguf'}: ")
    assert "Q8_0 x " in out
    assert err.startswith("note: files of llama have no attention windows")
    assert read_metadata(tmp_path / "m.gguf", ModelError)["general.name"] == model.name
    code, out, err = run(capsys, tmp_path / "m.gguf", tmp_path, "--outtype", "F16", "--name", "N")
    assert code == 0, err
    assert (tmp_path / "N-F16.gguf").exists()
    assert "were quantized already" in err
    assert read_metadata(tmp_path / "N-F16.gguf", ModelError)["general.name"] == "N"
    code, out, err = run(capsys, tmp_path / "N-F16.gguf", tmp_path, "--type", "q4_0")
    assert code == 0, err
    assert (tmp_path / "N-Q4_0.gguf").exists()


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["OUT"], "--type"),
        (["OUT", "--type", "iq3_s"], "'iq3_s' is not written; those that are: F32, "),
        (["OUT", "--type", "f16", "--threads", "0"], "must be 1 to 1024"),
        (["OUT", "--type", "f16", "--name", " "], "--name: is empty"),
        (["OUT", "--type", "q4_k", "--imatrix", "missing.dat"], "cannot read missing.dat"),
        (["model.bin", "--type", "f16"], "must end in .gguf"),
        (["there.gguf", "--type", "f16"], "is there already; replace it with --force"),
        (["missing/model.gguf", "--type", "f16"], "there is no folder"),
    ],
)
def test_words_that_cannot_be_honoured(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str], here: Path
) -> None:
    (here / "there.gguf").write_text("there")
    words = ["out.gguf" if word == "OUT" else word for word in argv]
    code, out, err = run(capsys, tiny_checkpoint("llama"), *words)
    assert (code, out) == (cli.EXIT_USAGE, "")
    assert message in err
    assert err.count("\n") == 1
    assert [each.name for each in here.iterdir()] == ["there.gguf"]


def test_the_model_itself_is_not_replaced(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "m.gguf"
    assert run(capsys, tiny_checkpoint("llama"), path, "--type", "f32")[0] == 0
    before = path.read_bytes()
    code, _, err = run(capsys, path, path, "--type", "q8_0", "--force")
    assert code == cli.EXIT_USAGE
    assert "is the model itself" in err
    assert path.read_bytes() == before
