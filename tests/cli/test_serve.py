"""Options of ``penstock serve`` that are refused before anything is loaded, and its port."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.cli.main import main


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--tls-cert", "cert.pem"], "both --tls-cert and --tls-key"),
        (["--tls-key", "key.pem"], "both --tls-cert and --tls-key"),
        (["--tls-cert", "no.pem", "--tls-key", "no.pem"], "no certificate and its private key"),
        (["--port", "70000"], "not a port"),
        (["--grace", "-1"], "not a whole number"),
        (["--request-timeout", "0"], "not a number of seconds above 0"),
        (["--request-timeout", "inf"], "not a number of seconds above 0"),
        (["--step-timeout", "soon"], "not a number of seconds above 0"),
        (["--max-waiting", "many"], "not a whole number"),
        (["--log-format", "xml"], "invalid choice"),
        (["--host", "no.such.host.invalid"], "is no address of this machine"),
        (["--api-key-file", "no-such-file", "--port", "0"], "cannot be read"),
    ],
)
def test_options_that_cannot_be_honoured(
    options: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["serve", *options]) == 2
    assert message in capsys.readouterr().err
