"""Starts ``http_server.py`` and asks it things."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import openai


class Server:
    """One client for all requests: making one reads every certificate of the machine."""

    def __init__(self, process: subprocess.Popen[str], url: str, engine_pid: int) -> None:
        self.process = process
        self.url = url
        self.engine_pid = engine_pid
        self.http = httpx.Client(base_url=url, verify=False, timeout=10)

    def client(self) -> openai.OpenAI:
        return openai.OpenAI(
            base_url=f"{self.url}/v1", api_key="none", max_retries=0, http_client=self.http
        )

    def async_client(self) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(
            base_url=f"{self.url}/v1",
            api_key="none",
            max_retries=0,
            http_client=httpx.AsyncClient(verify=False, timeout=10),
        )

    def post(self, path: str, body: object) -> httpx.Response:
        if isinstance(body, bytes):
            return self.http.post(path, content=body)
        return self.http.post(path, json=body)

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
def running(folder: Path, step_ms: int) -> Iterator[Server]:
    path = os.pathsep.join(entry for entry in sys.path if entry)
    process = subprocess.Popen(
        [sys.executable, "-m", "http_server", str(folder), str(step_ms)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert process.stdout is not None
    try:
        port, pid = process.stdout.readline().split()
        server = Server(process, f"http://127.0.0.1:{port}", int(pid))
        with server.http:
            yield server
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
