"""Starts ``http_server.py`` and asks it things.

Servers are forked off a process that has imported their modules, which takes most of a second.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import IO, Any

import httpx
import msgspec
import openai

from support.http_server import ADMIN_KEY, Settings, main
from support.waiting import PATIENCE_S

JSON = {"content-type": "application/json"}
_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(["penstock.server.run", "penstock.cli.listen"])


class ServerProcess:
    """A server's process, as ``subprocess.Popen`` has it."""

    def __init__(self, process: BaseProcess) -> None:
        assert process.pid is not None
        self.pid = process.pid
        self._process = process

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        code = self._process.exitcode
        if code is None:
            raise TimeoutError(f"the server still runs after {timeout} s")
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Server:
    """One client for all requests: making one reads every certificate of the machine."""

    def __init__(self, process: ServerProcess, url: str, engine_pid: int) -> None:
        self.process = process
        self.url = url
        self.engine_pid = engine_pid
        self.http = httpx.Client(base_url=url, verify=False, timeout=PATIENCE_S)

    def client(self) -> openai.OpenAI:
        http: Any = self.http  # openai's types are those of a package of its own
        return openai.OpenAI(
            base_url=f"{self.url}/v1", api_key="none", max_retries=0, http_client=http
        )

    def async_client(self) -> openai.AsyncOpenAI:
        http: Any = httpx.AsyncClient(verify=False, timeout=PATIENCE_S)
        return openai.AsyncOpenAI(
            base_url=f"{self.url}/v1",
            api_key="none",
            max_retries=0,
            http_client=http,
        )

    def post(self, path: str, body: object) -> httpx.Response:
        if isinstance(body, bytes):
            return self.http.post(path, content=body, headers=JSON)
        return self.http.post(path, json=body)

    def admin(self, name: str, body: object = None) -> httpx.Response:
        """Ask ``/admin/name``, with the admin's key; GET where there is no body."""
        headers = {"authorization": f"Bearer {ADMIN_KEY}"}
        if body is None:
            return self.http.get(f"/admin/{name}", headers=headers)
        return self.http.post(f"/admin/{name}", json=body, headers=headers)

    def status(self) -> dict[str, Any]:
        """What ``/admin/status`` says."""
        answer: dict[str, Any] = self.admin("status").json()
        return answer

    def ready(self) -> bool:
        return self.http.get("/ready").status_code == 200

    def metric(self, name: str, **labels: str) -> float:
        """The value of the first sample of that name with these labels."""
        for line in self.http.get("/metrics").text.splitlines():
            sample, _, value = line.rpartition(" ")
            if sample.startswith(f"penstock:{name}{{") and all(
                f'{key}="{text}"' in sample for key, text in labels.items()
            ):
                return float(value)
        raise AssertionError(f"no metric {name} {labels}")


@contextmanager
def running(
    folder: Path, step_ms: int, stderr: IO[bytes] | None = None, **settings: Any
) -> Iterator[Server]:
    """``settings`` are those of ``http_server.py``; ``stderr`` takes its log."""
    path = os.pathsep.join(entry for entry in sys.path if entry)
    environment = {**os.environ, "PYTHONPATH": path}
    log = None if stderr is None else Connection(os.dup(stderr.fileno()))  # these are handed over
    told, tells = _PROCESSES.Pipe(duplex=False)
    asked = msgspec.convert({"folder": str(folder), "step_ms": step_ms, **settings}, Settings)
    started = _PROCESSES.Process(target=main, args=(asked, environment, log, tells))
    started.start()
    process = ServerProcess(started)
    tells.close()
    if log is not None:
        log.close()
    try:
        with told:
            port, pid = told.recv()
        scheme = "https" if settings.get("tls") else "http"
        server = Server(process, f"{scheme}://127.0.0.1:{port}", pid)
        with server.http:
            yield server
    finally:
        process.send_signal(signal.SIGCONT)
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(15)
        except TimeoutError:
            process.kill()
            process.wait()
        started.close()


def refused(response: httpx.Response, status: int = 400) -> dict[str, Any]:
    """The error of an answer that refuses, in OpenAI's shape."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["message"]
    assert len(body["error"]["message"]) < 500
    error: dict[str, Any] = body["error"]
    return error
