"""Options of ``penstock serve`` that are refused before anything is loaded, and its port."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.profiles import profile_of

from penstock.cli import serve
from penstock.cli.main import main
from penstock.cli.options import engine_config
from penstock.cli.parser import Parser
from penstock.cli.serve_profile import engine_setup
from penstock.profile import ProfileOptions
from penstock.written_file import write_json


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--tls-cert", "cert.pem"], "both --tls-cert and --tls-key"),
        (["--tls-key", "key.pem"], "both --tls-cert and --tls-key"),
        (["--tls-cert", "no.pem", "--tls-key", "no.pem"], "no certificate and its private key"),
        (["--chat-template", "no.jinja"], "--chat-template no.jinja cannot be used: "),
        (["--chat-template", os.devnull], "cannot be used: "),
        (["--port", "70000"], "not a port"),
        (["--grace", "-1"], "not a whole number"),
        (["--request-timeout", "0"], "not a number of seconds above 0"),
        (["--request-timeout", "inf"], "not a number of seconds above 0"),
        (["--step-timeout", "soon"], "not a number of seconds above 0"),
        (["--max-waiting", "many"], "not a whole number"),
        (["--log-format", "xml"], "invalid choice"),
        (["--host", "no.such.host.invalid"], "is no address of this machine"),
    ],
)
@pytest.mark.usefixtures("here")
def test_options_that_cannot_be_honoured(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", *options]) == 2
    assert message in capsys.readouterr().err


def test_the_profiles_limit_of_waiting_sequences(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    write_json(path, profile_of(ProfileOptions(max_waiting=16)))
    parser = Parser("penstock serve", "")
    serve.add_arguments(parser)
    for words, waiting, told in (
        ([], 1024, []),
        (["--profile", str(path)], 16, ["profile of 2026"]),
        (["--profile", str(path), "--max-waiting", "3"], 3, ["profile of 2026", "is 3, as asked"]),
    ):
        args = parser.parse(words)
        config = engine_config(args)
        assert engine_setup(args, config).max_waiting == waiting
        facts = serve._of_profile(args, config)
        assert len(facts) == len(told)
        assert all(text in fact for text, fact in zip(told, facts, strict=True)), facts


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"{% if", "not valid Jinja"), (b"\xff", "utf-8"), (b" \n", "is empty")],
)
def test_files_that_are_no_chat_template(
    content: bytes, message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "chat.jinja"
    path.write_bytes(content)
    assert main(["serve", "--chat-template", str(path)]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    ("options", "message", "code"),
    [
        (["--api-key-file", "no-such-file"], "cannot be read", 2),
        (["./no-such-model"], "no-such-model", 1),
    ],
)
def test_what_the_serving_process_finds_is_reported_once(
    options: list[str], message: str, code: int, tmp_path: Path
) -> None:
    """It is a child of the one that was started; nothing is tried again."""
    command = [sys.executable, "-m", "penstock", "serve", "--port", "0", *options]
    path = os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path if entry)
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == code
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("penstock: error: ")
    assert message in line


@pytest.mark.slow
@pytest.mark.parametrize("several", [False, True])
def test_a_folder_of_batches_that_cannot_be_used_is_told_at_the_start(
    several: bool, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "models" / "a").mkdir(parents=True)
    (tmp_path / "models" / "a" / "config.json").write_text("{}")
    models = ["--models", str(tmp_path / "models")] if several else []
    words = [*models, "--backend", "reference", "--port", "0"]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "penstock", "serve", *words),
            *("--batch-dir", str(tmp_path / "file" / "batches")),
        ],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert "--batch-dir" in done.stderr
    assert "cannot be used: Not a directory" in done.stderr
