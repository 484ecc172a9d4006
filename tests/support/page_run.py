"""Runs the blocks of a page as its reader would: in order, in one folder, with the models that it
names."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.demo_model import demo_model_path
from support.markdown_blocks import Block
from support.needs import REPOSITORY
from support.waiting import until

LIMIT_S = 200
_PORT = re.compile(r"(?<=:)8000\b|(?<=--port )8000\b")
MODELS = (
    "HuggingFaceTB/SmolLM2-135M-Instruct",
    "MODEL",
    "Qwen/Qwen3-0.6B",
    "path/to/checkpoint",
)
"""What pages call a model: it is the demo model here."""
_FILES = {
    "prompts.jsonl": '{"prompt": "def f(x):"}\n{"prompt": "import os"}\n',
    "question.txt": "Why is the sky blue?\n",
    "FILE": "The sky is blue, since the air scatters blue light more than red light. " * 40,
    "users.keys": "a-secret-key-of-a-user\n",
}


class PageRun:
    """A folder with what a page of the docs names, and the server that its blocks have started.

    The port 8000 of addresses and options is a free one here.
    """

    def __init__(self, folder: Path, models: dict[str, Path]) -> None:
        self._folder = folder
        self._server: subprocess.Popen[bytes] | None = None
        self._server_errors = (folder / "server.log").open("w+")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = str(free.getsockname()[1])
        for name, model in {**dict.fromkeys(MODELS, demo_model_path()), **models}.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).symlink_to(model)
        for name, text in _FILES.items():
            (folder / name).write_text(text)
        (folder / "benchmarks").symlink_to(REPOSITORY / "benchmarks")
        programs = folder / ".programs"
        programs.mkdir()
        for name, command in (("python", ""), ("penstock", "-m penstock")):
            (programs / name).write_text(f'#!/bin/sh\nexec {sys.executable} {command} "$@"\n')
            (programs / name).chmod(0o755)
        self._environ = {
            **os.environ,
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "HOME": str(folder),
            "XDG_CACHE_HOME": str(folder / ".cache"),
            "XDG_STATE_HOME": str(folder / ".state"),
            "HF_HUB_OFFLINE": "1",
        }
        self._sh("git init -q . && git add question.txt && echo more >> question.txt")
        self._sh(
            "openssl req -x509 -newkey rsa:2048 -nodes -subj /CN=localhost -days 2 "
            "-keyout key.pem -out cert.pem"
        )

    def run(self, block: Block) -> str:
        """What the block writes; an AssertionError for one that fails, with all that was said."""
        if block.language == "python":
            return self._command(block, ["python", "-c", self._here(block.text)])
        return "".join(self._shell(block, command) for command in block.commands)

    def close(self) -> None:
        if self._server is not None:
            self._server.send_signal(signal.SIGINT)
            self._server.wait(LIMIT_S)
        self._server = None

    def _here(self, text: str) -> str:
        return _PORT.sub(self._port, text)

    def _shell(self, block: Block, command: str) -> str:
        if not command.startswith("penstock serve"):
            return self._command(block, ["bash", "-euo", "pipefail", "-c", self._here(command)])
        self.close()  # one that has the port
        port = "" if "--port" in command else f" --port {self._port}"
        output = self._folder / "server.out"  # no pipe, which would fill up
        with output.open("w") as stream:
            self._server = server = subprocess.Popen(
                ["bash", "-c", f"exec {self._here(command)}{port}"],
                stdout=stream,
                stderr=self._server_errors,
                cwd=self._folder,
                env=self._environ,
            )
        until(
            lambda: server.poll() is not None or "\nready in " in output.read_text(),
            LIMIT_S,
            f"{block}: {command} is ready",
        )
        said = output.read_text()
        assert server.poll() is None, f"{block}: {command} is not ready: {said}"
        return said

    def _command(self, block: Block, words: list[str]) -> str:
        done = subprocess.run(
            words,
            input="Hello!\n",
            capture_output=True,
            text=True,
            cwd=self._folder,
            env=self._environ,
            timeout=LIMIT_S,
        )
        refused = "curl " in words[-1] and '{"error"' in done.stdout  # for which curl ends with 0
        if done.returncode != 0 or refused:
            raise AssertionError(f"{block}: {words[-1]}\n{done.stdout}\n{done.stderr}")
        return done.stdout

    def _sh(self, command: str) -> None:
        subprocess.run(
            ["bash", "-c", command],
            cwd=self._folder,
            env=self._environ,
            check=True,
            capture_output=True,
        )


@contextmanager
def page(folder: Path, models: dict[str, Path]) -> Iterator[PageRun]:
    """``models`` are further ones that the page names, and where they are."""
    opened = PageRun(folder, models)
    try:
        yield opened
    finally:
        opened.close()
