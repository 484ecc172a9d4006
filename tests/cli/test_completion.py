"""Completion in shells: the scripts are run by a real bash."""

from __future__ import annotations

import shutil
import subprocess
from functools import cache

import pytest

from penstock.cli import main as cli
from penstock.cli.completion import _bash, _fish, _zsh


@cache
def script() -> str:
    return _bash()


def completed(line: str) -> list[str]:
    """What bash offers behind ``line``."""
    words = line.split(" ")
    quoted = " ".join(f"'{word}'" for word in words)
    asks = (
        f"COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; _penstock; "
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        ["bash", "--norc", "-c", f"{script()}\n{asks}"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize(
    ("line", "offers", "not_these"),
    [
        ("penstock ", {"chat", "generate", "bench", "completion"}, {"latency"}),
        ("penstock ge", {"generate"}, {"serve"}),
        ("penstock bench ", {"latency"}, {"chat"}),
        ("penstock bench replay ", {"azure", "mooncake"}, {"latency"}),
        ("penstock generate --js", {"--json", "--json-schema"}, {"--prompt"}),
        ("penstock generate --dtype ", {"float16", "auto"}, {"--json"}),
        ("penstock chat --dtype b", {"bfloat16"}, {"float16"}),
        ("penstock bench latency --inp", {"--input-len"}, {"--prompt"}),
        ("penstock completion ", set(), {"--help"}),
        ("penstock generate model", set(), {"--json"}),
    ],
)
def test_what_bash_offers(line: str, offers: set[str], not_these: set[str]) -> None:
    found = set(completed(line))
    assert offers <= found
    assert not found & not_these


def test_every_command_is_completed() -> None:
    assert {command.words[0] for command in cli.COMMANDS} <= set(completed("penstock "))


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_can_read_it(shell: str) -> None:
    text = {"bash": script, "zsh": _zsh, "fish": _fish}[shell]()
    if shutil.which(shell) is None:
        assert shell != "bash"
        return
    done = subprocess.run([shell, "-n"], input=text, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["completion", "bash"]) == 0
    assert "complete -o default -F _penstock penstock" in capsys.readouterr().out
    assert cli.main(["completion", "tcsh"]) == 2
    assert cli.main(["-V"]) == 0
