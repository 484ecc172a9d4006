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
    monkeypatch.setattr(calibrate, "calibrated", lambda *_: pytest.fail("nothing is measured"))
    assert cli.main(["calibrate", "--out", out.format(tmp_path)]) == 2
    assert told in capsys.readouterr().err
