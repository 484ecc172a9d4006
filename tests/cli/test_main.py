"""The entry point: dispatch, errors, exit codes, start-up time."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.terminal_text import TerminalText

import penstock
from penstock.cli import main as cli
from penstock.errors import ConfigError, EngineDeadError, ModelError
from penstock.written_file import write_json


def run(*argv: str) -> int:
    return cli.main(argv)


def stub(monkeypatch: pytest.MonkeyPatch, result: BaseException | int) -> None:
    """Make every command do nothing but return or raise ``result``."""

    def act(args: object) -> int:
        if isinstance(result, BaseException):
            raise result
        return result

    module = SimpleNamespace(__doc__="doc", add_arguments=lambda parser: None, run=act)
    monkeypatch.setattr(cli.importlib, "import_module", lambda name: module)
    monkeypatch.delenv("PENSTOCK_DEBUG", raising=False)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--version") == 0
    assert capsys.readouterr().out == f"penstock {penstock.__version__}\n"


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--help") == 0
    out = capsys.readouterr().out
    for command in cli.COMMANDS:
        assert f"  {' '.join(command.words)}  " in out


def test_a_groups_help_lists_its_commands_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("bench", "--help") == 0
    out = capsys.readouterr().out
    assert "bench latency" in out
    assert "generate" not in out


def test_every_group_says_what_it_is_for(capsys: pytest.CaptureFixture[str]) -> None:
    groups = {c.words[:n] for c in cli.COMMANDS for n in range(len(c.words))}
    said = set()
    for words in groups:
        assert run(*words, "--help") == 0
        said.add(capsys.readouterr().out.splitlines()[2])
    assert len(said) == len(groups) == 5


@pytest.mark.parametrize("argv", [[], ["bench"], ["bench", "replay"]])
def test_no_command_prints_help_and_fails(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*argv) == cli.EXIT_USAGE
    assert "usage: penstock" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "hint"),
    [
        (["genrate"], "did you mean generate?"),
        (["bench", "latncy"], "did you mean latency?"),
        (["bench", "replay", "azur"], "did you mean azure?"),
        (["--verison"], "see 'penstock --help'"),
        (["help"], "see 'penstock --help'"),
        (["run", "model"], "'penstock chat MODEL'"),
    ],
)
def test_unknown_commands(argv: list[str], hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*argv) == cli.EXIT_USAGE
    error = capsys.readouterr().err
    assert error.startswith("penstock: error: unknown ")
    assert hint in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (ConfigError("bad\n  option"), 2, "penstock: error: bad option\n"),
        (ModelError("no such model"), 1, "penstock: error: no such model\n"),
        (EngineDeadError("gone"), 1, "penstock: error: gone\n"),
        (FileNotFoundError(2, "No such file", "a.txt"), 1, "a.txt: No such file"),
        (KeyError("x"), 1, "internal error, KeyError: 'x'"),
        (MemoryError(), 1, "--kv-cache-bytes"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_errors_are_one_line(
    error: BaseException,
    code: int,
    text: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    stub(monkeypatch, error)
    assert run("generate") == code
    captured = capsys.readouterr()
    assert text in captured.err
    assert captured.err.count("\n") == (1 if text else 0)
    assert captured.out == ""


def test_an_error_cannot_steer_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    stub(monkeypatch, ModelError("the server's error: \x1b]0;title\x07"))
    terminal, file = TerminalText(), io.StringIO()
    for stream in (terminal, file):
        monkeypatch.setattr(sys, "stderr", stream)
        assert run("generate") == 1
    assert terminal.getvalue() == "penstock: error: the server's error: ␛]0;title␇\n"
    assert file.getvalue() == "penstock: error: the server's error: \x1b]0;title\x07\n"


def test_debug_shows_the_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    stub(monkeypatch, ModelError("x"))
    with pytest.raises(ModelError):
        run("generate", "--debug")
    monkeypatch.setenv("PENSTOCK_DEBUG", "1")
    with pytest.raises(ModelError):
        run("generate")
    monkeypatch.setenv("PENSTOCK_DEBUG", "0")
    assert run("generate") == 1


def test_a_commands_code_is_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    stub(monkeypatch, 7)
    assert run("bench", "replay", "azure") == 7


def test_unknown_option_of_a_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stub(monkeypatch, 0)
    assert run("generate", "--debgu") == 2
    assert "unknown option --debgu; did you mean --debug?" in capsys.readouterr().err


def process(*argv: str, **options: object) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "penstock", *argv]
    return subprocess.Popen(command, stderr=subprocess.PIPE, **options)  # type: ignore[call-overload,no-any-return]


def test_a_reader_that_went_away_is_no_error() -> None:
    read, write = os.pipe()
    os.close(read)
    child = process("--help", stdout=write)
    os.close(write)
    assert child.communicate(timeout=30)[1] == b""
    assert child.returncode == cli.EXIT_BROKEN_PIPE


@pytest.mark.parametrize(
    "words", [["--help"], ["-V"], ["generate", "--help"], ["completion", "zsh"]]
)
def test_output_that_finds_no_room_is_an_error(words: list[str]) -> None:
    with open("/dev/full", "wb") as full:
        child = process(*words, stdout=full)
        said = child.communicate(timeout=30)[1].decode()
    assert said == f"penstock: error: standard output cannot be written: {os.strerror(28)}\n"
    assert child.returncode == cli.EXIT_FAILED


def test_a_file_that_finds_no_room_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def work() -> int:
        write_json(Path("/dev/full"), {"a": 1})
        return 0

    assert cli.outcome(work, debug=False) == cli.EXIT_FAILED
    assert capsys.readouterr().err == f"penstock: error: /dev/full: {os.strerror(28)}\n"


def test_interrupt_is_quiet() -> None:
    code = (
        "import signal, sys, time, types; from penstock.cli import main as cli\n"
        # A test run in the background inherits an ignored SIGINT.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "def run(args): print('up', flush=True); time.sleep(30)\n"
        "module = types.SimpleNamespace(add_arguments=lambda p: None, run=run)\n"
        "cli.importlib.import_module = lambda name: module\n"
        "sys.exit(cli.main(['generate']))"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert child.stdout is not None
    assert child.stdout.readline() == b"up\n"
    child.send_signal(signal.SIGINT)
    assert child.communicate(timeout=30)[1] == b""
    assert child.returncode == cli.EXIT_INTERRUPTED


def test_interrupt_while_commands_are_imported() -> None:
    code = (
        "import runpy, sys\n"
        "class Interrupted:\n"
        "    def find_spec(self, name, *rest):\n"
        "        if name == 'penstock.cli.main': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupted())\n"
        "runpy.run_module('penstock', run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True)
    assert (done.returncode, done.stderr) == (cli.EXIT_INTERRUPTED, b"")


def test_little_is_imported_before_an_interrupt_is_quiet() -> None:
    code = (
        "import sys; before = set(sys.modules); import penstock\n"
        "late = {'pathlib', 're', 'typing'} & (set(sys.modules) - before)\n"
        "sys.exit(f'loaded {late}' if late else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_help_and_version_load_nothing_heavy(option: str) -> None:
    code = (
        "import sys; from penstock.cli.main import main; main([sys.argv[1]])\n"
        "heavy = {'numpy', 'msgspec', 'argparse', 'tokenizers', 'starlette'} & set(sys.modules)\n"
        "sys.exit(f'loaded {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code, option], capture_output=True)
    assert done.returncode == 0, done.stderr
