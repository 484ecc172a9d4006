"""``penstock serve`` with the real engine, whose serving process is killed."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from support.needs import needs_native
from support.waiting import PATIENCE_S, until

BODY = {"model": "penstock-demo", "prompt": "def f(x):", "max_tokens": 8, "temperature": 0}
LONG = {**BODY, "max_tokens": 200, "ignore_eos": True, "n": 16, "temperature": 1}


pytestmark = needs_native


def children(pid: int) -> list[int]:
    return [int(c) for c in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.fixture
def process(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    path = os.pathsep.join(entry for entry in sys.path if entry)
    command = [sys.executable, "-m", "penstock", "serve", "--port", "0", "--threads", "1"]
    environment = {**os.environ, "PYTHONPATH": path, "PENSTOCK_ADMIN_KEY": "admin"}
    command += ["--max-model-len", "512", "--kv-cache-bytes", "16MiB"]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=environment,
            process_group=0,  # so that a signal can be sent to all, as a terminal does
        )
    with process:
        yield process
        process.kill()


def engine_of(serving: int) -> int:
    """The engine among the serving process's children; the others are workers."""
    (engine,) = (
        pid
        for pid in children(serving)
        if b"penstock.engine.ipc.child" in Path(f"/proc/{pid}/cmdline").read_bytes()
    )
    return engine


def url(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    first = process.stdout.readline()
    found = re.search(r"at (http://\S+)/v1", first)
    assert found is not None, first
    return found[1]


@pytest.mark.slow
def test_a_serving_process_that_dies_is_replaced(
    process: subprocess.Popen[str], tmp_path: Path
) -> None:
    with httpx.Client(base_url=url(process), verify=False, timeout=PATIENCE_S) as http:
        expected = http.post("/v1/completions", json=BODY).json()["choices"]
        (serving,) = children(process.pid)
        engine = engine_of(serving)
        failures: list[BaseException] = []

        def ask() -> None:
            try:
                http.post("/v1/completions", json={**LONG, "n": 1})
            except httpx.HTTPError as error:
                failures.append(error)

        asking = threading.Thread(target=ask)
        asking.start()
        until(lambda: "num_requests_running" in http.get("/metrics").text, PATIENCE_S, "asked")
        until(lambda: running(http) > 0, PATIENCE_S, "running")
        os.kill(serving, signal.SIGSEGV)
        asking.join()
        assert len(failures) == 1
    with httpx.Client(base_url=http.base_url, verify=False, timeout=PATIENCE_S) as http:
        # Not refused, not even for a moment: it waits for the next server.
        assert http.post("/v1/completions", json=BODY).json()["choices"] == expected
        status = http.get("/admin/status", headers={"authorization": "Bearer admin"}).json()
        assert 'server_restarts_total{model_name="penstock-demo"} 1.0' in http.get("/metrics").text
    (second,) = children(process.pid)
    assert second != serving
    assert status["server"] == {"pid": second, "restarts": 1}
    assert not Path(f"/proc/{engine}").exists()
    log = (tmp_path / "log").read_text()
    assert log.count("was ended by SIGSEGV; it is started again in 1 s (1 in a row)") == 1
    assert len(re.findall(rf"the server is back after \S+ s \(pid {second}\)", log)) == 1
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE_S) == 0
    assert not Path(f"/proc/{second}").exists()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_all_processes_drains(
    process: subprocess.Popen[str], number: signal.Signals
) -> None:
    """A terminal tells its whole group, and so do some process managers."""
    with (
        httpx.Client(base_url=url(process), verify=False, timeout=PATIENCE_S) as http,
        http.stream("POST", "/v1/completions", json={**LONG, "stream": True}) as response,
    ):
        lines = response.iter_lines()
        next(lines)
        (serving,) = children(process.pid)
        engine = engine_of(serving)
        for pid in (serving, engine, process.pid):
            os.kill(pid, number)
        assert [line for line in lines if line][-1] == "data: [DONE]"
    assert process.wait(PATIENCE_S) == 0


@pytest.mark.slow
def test_the_end_of_the_guardian_is_the_end_of_all(process: subprocess.Popen[str]) -> None:
    url(process)
    (serving,) = children(process.pid)
    engine = engine_of(serving)
    process.kill()
    for pid in (serving, engine):
        until(lambda: ended(pid), PATIENCE_S, "all have ended")  # noqa: B023


def ended(pid: int) -> bool:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    return True


def running(http: httpx.Client) -> float:
    found = re.search(r"num_requests_running\{.*\} (\S+)", http.get("/metrics").text)
    return 0 if found is None else float(found[1])
