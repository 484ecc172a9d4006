"""The server that is measured: started by itself, whatever is around it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from penstock.errors import PenstockError
from penstock.server.keys import ADMIN_VARIABLE, KEYS_VARIABLE
from penstock.simulate.server_process import serving

SERVER = """#!/bin/sh
env > {environment}
echo "at http://127.0.0.1:9/v1"
echo "ready in 1 s"
"""


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file in which a program in the interpreter's place writes its environment."""
    program, found = tmp_path / "server", tmp_path / "environment"
    program.write_text(SERVER.format(environment=found))
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    return found


def test_keys_and_traces_of_the_users_server_are_not_its_own(
    environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (KEYS_VARIABLE, ADMIN_VARIABLE, "OTEL_EXPORTER_OTLP_ENDPOINT"):
        monkeypatch.setenv(name, "of the users' server")
    monkeypatch.setenv("PENSTOCK_ISA", "baseline")
    with serving([]) as url:
        assert url == "http://127.0.0.1:9"
    found = environment.read_text()
    assert "of the users' server" not in found
    assert "PENSTOCK_ISA=baseline\n" in found


def test_one_that_does_not_start(environment: Path) -> None:
    Path(sys.executable).write_text("#!/bin/sh\n")
    with pytest.raises(PenstockError, match="did not start"), serving([]):
        pass
