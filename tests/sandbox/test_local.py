"""A worker of one blocking caller, whose threads come and go."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support import byte_tokenizer, sandbox_processes
from support.waiting import PATIENCE_S

from penstock.errors import PenstockError, UnavailableError
from penstock.grammar.spec import GrammarSpec
from penstock.processes.frames import HEADER
from penstock.sandbox import local
from penstock.sandbox.jobs import Checked, CheckGrammar, Exceeded, TokenizeChat
from penstock.sandbox.local import LocalWorker

QUICK = CheckGrammar.of(GrammarSpec(kind="regex", text="a+"))
ENDLESS = "{% for a in 'x' * 100000 %}{% for b in 'x' * 100000 %}{% endfor %}{% endfor %}"


@pytest.fixture
def worker() -> Iterator[LocalWorker]:
    worker = LocalWorker()
    yield worker
    worker.close()
    until(lambda: not sandbox_processes.servers())


@pytest.fixture
def endless(tmp_path: Path) -> TokenizeChat:
    """A job that ends by its limit of three seconds of processor time."""
    folder = byte_tokenizer.write(tmp_path)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": ENDLESS}))
    return TokenizeChat.of(
        str(folder), [], [], {}, add_generation_prompt=True, add_special_tokens=False, max_tokens=9
    )


def until(true: Callable[[], object]) -> None:
    ends = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < ends
        time.sleep(0.01)


def works(worker: LocalWorker) -> bool:
    """Whether its process lives and has begun to compute."""
    process = worker._process
    live = sandbox_processes.of(sandbox_processes.servers())
    return process is not None and process.pid in live and process.cpu_s > 0.3


def in_thread(work: Callable[[], object]) -> tuple[threading.Thread, list[PenstockError]]:
    raised: list[PenstockError] = []

    def run() -> None:
        try:
            work()
        except PenstockError as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, raised


@pytest.mark.slow
def test_a_thread_that_ends_leaves_the_job_of_another_alone(
    worker: LocalWorker, endless: TokenizeChat
) -> None:
    leave = threading.Event()
    checked = threading.Event()

    def first() -> None:
        assert worker.run(QUICK) == Checked(None)
        checked.set()
        leave.wait(PATIENCE_S)

    starter, _ = in_thread(first)
    assert checked.wait(PATIENCE_S)
    servers = sandbox_processes.servers()
    other, raised = in_thread(lambda: worker.run(endless))
    until(lambda: works(worker))
    leave.set()
    starter.join(PATIENCE_S)
    other.join(PATIENCE_S)
    (error,) = raised
    assert isinstance(error, Exceeded)
    assert error.cause == "time"
    assert worker.run(QUICK) == Checked(None)
    assert sandbox_processes.servers() == servers


def test_a_worker_that_is_lost_is_no_fault_of_its_job(
    worker: LocalWorker, endless: TokenizeChat
) -> None:
    worker.run(QUICK)
    thread, raised = in_thread(lambda: worker.run(endless))
    for _ in range(2):
        until(lambda: works(worker))
        (server,) = sandbox_processes.servers()
        os.kill(server, signal.SIGKILL)
        until(lambda gone=server: gone not in sandbox_processes.servers())  # type: ignore[misc]
    thread.join(PATIENCE_S)
    assert [type(error) for error in raised] == [UnavailableError]
    assert worker.run(QUICK) == Checked(None)


def test_a_job_that_takes_too_long_by_the_clock_is_not_refused(
    worker: LocalWorker, endless: TokenizeChat, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker.run(QUICK)
    monkeypatch.setattr(local, "WALL_S", 0.2)
    with pytest.raises(UnavailableError, match="overloaded"):
        worker.run(endless)
    monkeypatch.undo()
    assert worker.run(QUICK) == Checked(None)


def test_a_forked_child_that_closes_it_ends_nothing(worker: LocalWorker) -> None:
    worker.run(QUICK)
    before = sandbox_processes.of(sandbox_processes.servers())
    assert len(before) == 3
    child = os.fork()
    if child == 0:
        status = 1
        try:
            worker.close()
            worker.run(QUICK)
        except UnavailableError:
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert status == 0
    assert worker.run(QUICK) == Checked(None)
    assert sandbox_processes.of(sandbox_processes.servers()) == before


def test_a_worker_that_talks_nonsense_is_replaced(worker: LocalWorker) -> None:
    assert worker.run(QUICK) == Checked(None)
    ours, theirs = socket.socketpair()
    theirs.sendall(HEADER.pack(1) + b"\xc1")
    assert worker._socket is not None
    worker._socket.close()
    worker._socket = ours
    with theirs:
        assert worker.run(QUICK) == Checked(None)
