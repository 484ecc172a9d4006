"""Schemathesis, a client that finds its requests in the server's own document."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.http_client import Server, running
from support.http_server import ADMIN_KEY

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("schemathesis") is None, reason="schemathesis is not installed"
)

COMMAND = "from schemathesis.cli import schemathesis; schemathesis()"


def run(server: Server, folder: Path, *options: str) -> dict[str, Any]:
    """Schemathesis's report of requests that are the same in each run."""
    report = folder / "report.json"
    document = server.http.get("/openapi.json").json()
    for methods in document["paths"].values():
        for operation in methods.values():
            # A deadline that the client asks for is kept, with a 504: none of a microsecond, then.
            operation["parameters"] = [
                each for each in operation["parameters"] if each["name"] != "x-request-timeout"
            ]
    (folder / "openapi.json").write_text(json.dumps(document))
    command = [sys.executable, "-c", COMMAND, "run", "openapi.json", "--url", server.url]
    (folder / "schemathesis.toml").write_text(
        f'[auth.openapi]\nadmin = {{ bearer = "{ADMIN_KEY}" }}\n'
        # A header that a server does not know is none of its business.
        "[generation]\nallow-extra-parameters = false\n"
    )
    command += ["--phases", "fuzzing", "--seed", "1", "--generation-deterministic", "--no-shrink"]
    command += ["--continue-on-failure", "--request-timeout", "100"]
    command += ["--report", "json", "--report-json-path", str(report), *options]
    done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, text=True)
    assert report.exists(), done.stdout
    found: dict[str, Any] = json.loads(report.read_text())
    assert found["failures"] == found["errors"] == [], done.stdout
    assert found["complete"]
    return found


@pytest.mark.slow
def test_what_the_document_allows_and_forbids(tokenizer_folder: Path, tmp_path: Path) -> None:
    with running(tokenizer_folder, 0, max_model_len=64) as server:
        found = run(
            server,
            tmp_path,
            *("--max-examples", "8", "--include-method", "POST"),
            *("--exclude-path-regex", "drain|resume|cache|check|log-level|profile"),
            # Whether prompt and output fit the context depends on tokens, which no schema counts.
            *("--checks", "all", "--exclude-checks", "positive_data_acceptance"),
        )
        rates = [rate for phases in found["valid_rates"].values() for rate in phases.values()]
        accepted = sum(rate["accepted"] for rate in rates)
        refused = sum(rate["rejected"] for rate in rates)
        assert accepted > 0
        assert accepted >= refused / 4, "the document allows what is refused"
        assert server.ready()
        assert server.admin("check", {}).json() == {"ok": True}
