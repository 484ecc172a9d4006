"""The fork server itself, and what it knows of its parent's environment."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from support import byte_tokenizer, sandbox_processes
from support.waiting import PATIENCE_S

from penstock.grammar.spec import GrammarSpec
from penstock.processes.frames import FrameReader
from penstock.sandbox import worker
from penstock.sandbox.jobs import (
    Checked,
    CheckGrammar,
    FromWorker,
    Refused,
    Started,
    TokenizeChat,
    Tokens,
)
from penstock.sandbox.local import LocalWorker

SCARCE = """
import errno, os, sys
from penstock.sandbox import worker
fork, calls = os.fork, []
def scarce():
    calls.append(1)
    if len(calls) == 1:
        raise OSError(errno.EAGAIN, "no more processes")
    return fork()
os.fork = scarce
sys.exit(worker.main(["--fd", sys.argv[1]]))
"""


def order(server: socket.socket) -> list[FromWorker]:
    """What a worker says first; nothing, if none was started."""
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            socket.send_fds(server, [b"+"], [theirs.fileno()])
        ours.settimeout(PATIENCE_S)
        frames: FrameReader[FromWorker] = FrameReader(FromWorker)
        return frames.receive(ours)


def test_a_fork_that_fails_costs_its_job_alone() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    fd = theirs.fileno()
    path = os.pathsep.join(entry for entry in sys.path if entry)
    process = subprocess.Popen(
        [sys.executable, "-c", SCARCE, str(fd)],
        pass_fds=[fd],
        env={**os.environ, "PYTHONPATH": path},
    )
    theirs.close()
    with ours:
        assert order(ours) == []
        (started,) = order(ours)
        assert isinstance(started, Started)
        assert process.poll() is None
    assert process.wait(PATIENCE_S) == 0  # with its socket


def test_workers_are_given_no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = ("PENSTOCK_API_KEYS", "PENSTOCK_ADMIN_KEY", "HF_TOKEN", "DATABASE_URL", "HTTPS_PROXY")
    for name in secrets:
        monkeypatch.setenv(name, "a-secret")
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    local = LocalWorker()
    try:
        answer = local.run(CheckGrammar.of(GrammarSpec(kind="regex", text="a")))
        assert answer == Checked(None)
        started = sandbox_processes.of(sandbox_processes.servers())
        assert len(started) == 3
        for pid in started:
            environment = Path(f"/proc/{pid}/environ").read_bytes()
            assert b"a-secret" not in environment
            assert b"LC_ALL=C.UTF-8" in environment
    finally:
        local.close()


@pytest.mark.parametrize(
    ("status", "cause"),
    [
        (0, None),
        (1 << 8, "crash"),
        (9, "memory"),
        (6, "memory"),
        (11, "crash"),
        (11 | 128, "crash"),
        (27, "time"),
        (15, None),
        (1, None),
    ],
)
def test_what_a_job_is_blamed_for(status: int, cause: str | None) -> None:
    assert worker._cause(status) == cause


def test_a_job_may_bring_its_chat_template(tmp_path: Path) -> None:
    folder = str(byte_tokenizer.write(tmp_path))
    served = worker.Worker()

    def ask(template: str) -> object:
        job = TokenizeChat.of(
            folder,
            [{"role": "user", "content": "hi"}],
            [],
            {},
            add_generation_prompt=True,
            add_special_tokens=False,
            max_tokens=100,
            chat_template=template,
        )
        answer = served.answer(job)
        return answer.lists()[0] if isinstance(answer, Tokens) else answer

    own = ask("")
    spell = served.load(folder).encode
    assert ask("<{{ messages[0].content }}>") == spell("<hi>", False)
    assert ask("{{ messages[0].content }}!") == spell("hi!", False)
    assert isinstance(ask("{{ raise_exception('no') }}"), Refused)
    assert ask("") == own
