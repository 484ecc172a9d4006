"""Starts ``http_server.py`` and asks it things."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import openai


@dataclass
class Server:
    process: subprocess.Popen[str]
    url: str
    engine_pid: int

    def client(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=10)

    def async_client(self) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(
            base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=10
        )

    def post(self, path: str, body: object) -> httpx.Response:
        if isinstance(body, bytes):
            return httpx.post(self.url + path, content=body, timeout=10)
        return httpx.post(self.url + path, json=body, timeout=10)

    def metric(self, name: str, **labels: str) -> float:
        """The value of the first sample of that name with these labels."""
        for line in httpx.get(f"{self.url}/metrics").text.splitlines():
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
        yield Server(process, f"http://127.0.0.1:{port}", int(pid))
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
