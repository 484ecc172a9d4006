"""``penstock serve`` in a process of its own, with a real engine."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import openai


class Served:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        self.process = process
        self.lines = [process.stdout.readline()]
        while self.lines[-1] and not self.lines[-1].startswith("ready in "):
            self.lines.append(process.stdout.readline())
        found = re.search(r"at (http://\S+)", self.lines[0])
        assert found is not None, self.lines
        self.url = found[1]

    def client(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=self.url, api_key="none", max_retries=0)

    def async_client(self) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=self.url, api_key="none", max_retries=0)


@contextmanager
def serving(*words: str) -> Iterator[Served]:
    """``words`` are those after ``penstock serve``."""
    path = os.pathsep.join(entry for entry in sys.path if entry)
    command = [sys.executable, "-m", "penstock", "serve", *words, "--port", "0"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path}
    )
    assert process.stdout is not None
    try:
        yield Served(process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()  # where a test or the server has failed
        process.wait()
        process.stdout.close()
