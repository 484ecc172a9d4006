"""A worker of one blocking caller, whose threads come and go."""

from __future__ import annotations

import threading

from penstock.grammar.spec import GrammarSpec
from penstock.sandbox.jobs import Answer, Checked, CheckGrammar
from penstock.sandbox.local import LocalWorker


def test_a_worker_that_ended_with_its_thread_is_replaced() -> None:
    worker = LocalWorker()
    answers: list[Answer] = []

    def check() -> None:
        answers.append(worker.run(CheckGrammar.of(GrammarSpec(kind="regex", text="a+"))))

    try:
        for _ in range(2):
            thread = threading.Thread(target=check)
            thread.start()
            thread.join()
            server = worker._server._process
            assert server is not None
            server.wait(60)  # the kernel ends it with the thread
        check()
        assert worker._server._process is not server
    finally:
        worker.close()
    assert answers == [Checked(None)] * 3
