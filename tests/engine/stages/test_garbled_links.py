"""Connections to a stage whose bytes arrive otherwise than they were sent, or late."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from support.bitwise import prompt, run
from support.waiting import PATIENCE_S
from support.waiting_stage import waiting

from penstock import LLM, SamplingParams
from penstock.errors import EngineDeadError

pytestmark = pytest.mark.slow

PARAMS = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
PROMPT = prompt(1, 5, 200)


@dataclass
class Tunnel:
    """Leads connections to a stage. What comes back out of it is changed as a test says."""

    target: tuple[str, int]
    listener: socket.socket = field(default_factory=lambda: socket.create_server(("127.0.0.1", 0)))
    flips: bool = False
    """Flip a bit of the next bytes that come from the stage."""
    delay_s: float = 0.0
    """So long everything from the stage is held back."""
    threads: list[threading.Thread] = field(default_factory=list)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.listener.getsockname()[1]}"

    def run(self) -> None:
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return
            far = socket.create_connection(self.target)
            for args in ((near, far, False), (far, near, True)):
                self.threads.append(threading.Thread(target=self.pump, args=args, daemon=True))
                self.threads[-1].start()

    def pump(self, source: socket.socket, sink: socket.socket, from_stage: bool) -> None:
        with contextlib.suppress(OSError):
            while data := bytearray(source.recv(1 << 16)):
                if from_stage:
                    time.sleep(self.delay_s)
                    if self.flips:
                        self.flips = False
                        data[len(data) // 2] ^= 4
                sink.sendall(data)
        for each in (source, sink):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def tunnel(address: str) -> Iterator[Tunnel]:
    host, port = address.rsplit(":", 1)
    made = Tunnel((host, int(port)))
    accepting = threading.Thread(target=made.run, daemon=True)
    accepting.start()
    try:
        yield made
    finally:
        made.listener.shutdown(socket.SHUT_RDWR)
        made.listener.close()
        for thread in (accepting, *made.threads):
            thread.join(PATIENCE_S)


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    file = tmp_path / "secret"
    file.write_bytes(b"0123456789abcdef")
    file.chmod(0o600)
    return file


def test_a_bit_that_flips_on_the_way_never_becomes_a_token(secret: Path) -> None:
    """The engine ends with the stage's name, and another engine is served by the same stage."""
    with LLM(backend="reference") as one:
        expected = run(one, [PROMPT], PARAMS)
    with waiting(secret=secret.read_bytes()) as there, tunnel(there.address) as way:
        with LLM(
            backend="reference", pipeline_stages=way.address, pipeline_secret_file=str(secret)
        ) as llm:
            assert run(llm, [PROMPT], PARAMS) == expected
            way.flips = True
            with pytest.raises(EngineDeadError, match=r"stage 0 .*damaged|damaged.*stage 0"):
                run(llm, [prompt(2, 9, 200)], PARAMS)
        there.until_said("has left")
        with LLM(
            backend="reference", pipeline_stages=there.address, pipeline_secret_file=str(secret)
        ) as llm:
            assert run(llm, [PROMPT], PARAMS) == expected


def test_a_slow_way_changes_the_time_alone(secret: Path) -> None:
    with LLM(backend="reference") as one:
        expected = run(one, [PROMPT], PARAMS)
    with (
        waiting(secret=secret.read_bytes()) as there,
        tunnel(there.address) as way,
        LLM(
            backend="reference", pipeline_stages=way.address, pipeline_secret_file=str(secret)
        ) as llm,
    ):
        way.delay_s = 0.05
        began = time.monotonic()
        assert run(llm, [PROMPT], PARAMS) == expected
        assert time.monotonic() - began >= way.delay_s
        llm.check_integrity()
