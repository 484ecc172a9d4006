"""``penstock calibrate``: what it refuses before it measures."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.cli import calibrate
from penstock.cli import main as cli


@pytest.mark.parametrize(
    ("out", "told"), [("{}", "is a folder"), ("{}/none/here.json", "there is no folder")]
)
def test_a_file_that_cannot_be_written(
    out: str,
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(calibrate, "recorded", lambda *_: pytest.fail("nothing is measured"))
    path = out.format(tmp_path)
    assert cli.main(["calibrate", "--out", path]) == 2
    assert told in capsys.readouterr().err
    good = str(tmp_path / "here.json")
    assert cli.main(["calibrate", "--out", good, "--recording", path]) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "No such file"),
        (b"{}", "is no recording of a calibration"),
    ],
)
def test_a_recording_that_cannot_be_fitted(
    content: bytes | None, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "recording"
    if content is not None:
        path.write_bytes(content)
    words = ["calibrate", "--refit", str(path), "--out", str(tmp_path / "here.json")]
    assert cli.main(words) != 0
    assert told in capsys.readouterr().err
