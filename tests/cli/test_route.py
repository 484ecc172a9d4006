"""``penstock route``: what it refuses before it listens, and what it says."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from support.waiting import PATIENCE_S

from penstock.cli.main import main


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "arguments are required: URL"),
        (["ftp://a"], "'ftp://a' is no URL of a server"),
        (["http://a:0"], "no server is at port 0"),
        (["http://a/b/v1/chat/completions/"], "write the server's own: http://a/b\n"),
        (["http://a", "--wait", "-1"], "not a number from 0 on"),
        (["http://a", "--wait", "0", "http://a"], "http://a is given twice"),
        (["http://a", "http://a/v1/"], "http://a is given twice"),
        (["http://a", "--policy", "best"], "invalid choice: 'best'"),
        (["http://a", "--lost", "-1"], "not a number from 0 on"),
        (["http://a", "--idle-timeout", "0"], "not a number of seconds above 0"),
        (["http://a", "--tls-cert", "x"], "HTTPS needs both"),
        (["http://a", "--host", "no.such.host.invalid"], "is no address of this machine"),
    ],
)
def test_what_is_refused(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["route", "--port", "0", *words]) == 2
    assert told in capsys.readouterr().err


def test_the_help_says_that_a_server_must_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["route", "--help"]) == 0
    assert capsys.readouterr().out.startswith("usage: penstock route URL ... [OPTION ...]\n")


def test_a_key_that_is_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PENSTOCK_ADMIN_KEY", raising=False)
    path = tmp_path / "key"
    for text, told in (
        ("", "holds no key"),
        ("a b", "printable ASCII without spaces alone"),
        ("a\nb", "there may be one admin key"),
        ("\x07", "printable ASCII without spaces alone"),
    ):
        path.write_text(text)
        words = ["route", "http://a", "--port", "0", "--admin-key-file", str(path)]
        assert main(words) == 2
        assert told in capsys.readouterr().err


def test_a_port_in_use(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert main(["route", "http://127.0.0.1:1", "--port", port]) == 2
    assert f"port {port} on 127.0.0.1 is in use" in capsys.readouterr().err


def test_it_says_where_it_listens_and_what_it_found() -> None:
    path = os.pathsep.join(entry for entry in sys.path if entry)
    command = [sys.executable, "-m", "penstock", "route", "http://127.0.0.1:1", "--port", "0"]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert process.stdout is not None
    try:
        assert re.match(
            r"penstock routes at http://127\.0\.0\.1:\d+/v1$", process.stdout.readline()
        )
        told = process.stdout.readline()
        assert told == "  http://127.0.0.1:1: down (Connection refused)\n"
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0
        assert "http://127.0.0.1:1 is down: Connection refused" in log
        assert "stopping: 0 requests are open" in log
        assert "nanobind" not in log, "nothing native outlives the interpreter"
    finally:
        process.kill()
        process.wait()
