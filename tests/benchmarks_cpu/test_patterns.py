"""The command that loads servers beside each other, as far as it goes without one."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

PATTERNS = Path(__file__).parents[2] / "benchmarks" / "cpu" / "patterns.py"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--engines", "no"], "there is no engine 'no'; there are penstock"),
        (["--rounds", "0"], "--rounds: not a positive integer: '0'"),
    ],
)
def test_bad_options(arguments: list[str], message: str, tmp_path: Path) -> None:
    answer = subprocess.run(
        [sys.executable, str(PATTERNS), "--out", str(tmp_path), *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 2
    assert message in answer.stderr
    assert "Traceback" not in answer.stderr


def test_what_was_measured_before_a_signal_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = spec_from_file_location("cpu_patterns", PATTERNS)
    assert spec is not None
    assert spec.loader is not None
    patterns = module_from_spec(spec)
    spec.loader.exec_module(patterns)

    def ask(contender: Any, *rest: Any) -> Any:
        if contender.peer.name == "b":
            raise SystemExit(130)
        return SimpleNamespace(runs=[])

    monkeypatch.setattr(patterns, "ask", ask)
    contenders = [
        SimpleNamespace(peer=SimpleNamespace(name=name), failed=set(), pause=lambda: None)
        for name in "ab"
    ]
    found: dict[str, Any] = {}
    with pytest.raises(SystemExit):
        patterns.measure(contenders, argparse.Namespace(rounds=1), found)
    assert list(found) == ["a"]
