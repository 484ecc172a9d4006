"""A worker's process: takes one job after the other, under limits that end it.

``python -m penstock.sandbox.worker --fd N`` is a fork server. It loads the tokenizer once; after
that a worker is there in milliseconds. Each is forked by a keeper, a process that only waits for it
and reports its exit cause. All have a single thread and share the tokenizer's memory.

A worker's stack is bounded here, and its priority is lowered by the front end. What a job takes of
processor time is counted by a timer that ends the process: native code cannot be interrupted
otherwise.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import resource
import signal
import socket
import sys
import traceback
from collections.abc import Sequence

from penstock.errors import ContextLengthError, PenstockError, RequestError, as_error
from penstock.grammar.compile import check
from penstock.processes.family import end_with_parent
from penstock.processes.frames import FrameReader, encode
from penstock.sandbox.jobs import (
    Answer,
    Cause,
    Checked,
    CheckGrammar,
    Died,
    Exhausted,
    Failed,
    Job,
    Refused,
    Started,
    Task,
    Tokenize,
    TokenizeChat,
    Tokens,
)
from penstock.tokenizer import Tokenizer, load_tokenizer
from penstock.tokenizer.chat_tokens import tokenize_chat

MAX_ORDER_BYTES = 1 << 16
"""Longest message to the fork server in bytes: one byte, then the path of the tokenizer."""
STACK_BYTES = 4 << 20
"""Stack of the thread that runs jobs, in bytes. The engine compiles accepted grammars with sixteen
times as much (``engine.constraints``), so a grammar that fits here cannot overflow there. It
suffices for a chain of 430 object schemas that refer to each other."""
DATA_BYTES = 2 << 30
"""Memory limit of a worker, in bytes. Tokenizing takes up to 200 bytes for each byte of a text."""


class Worker:
    """Runs jobs, and keeps the tokenizer of the last job, and of the last with its own template."""

    def __init__(self) -> None:
        self._path = ""
        self._template = ""
        self._templated: Tokenizer | None = None
        self._tokenizer: Tokenizer | None = None

    def answer(self, job: Job) -> Answer:
        """Run a job and return its outcome; never raises."""
        try:
            with as_error(lambda text: RequestError(f"a library failed on this input: {text}")):
                return self._do(job)
        except RequestError as error:
            return Refused(str(error), error.param, isinstance(error, ContextLengthError))
        except MemoryError:
            pass  # answered once the frames that hold the memory are gone
        except PenstockError as error:
            return Failed(str(error))
        except Exception:
            return Failed(traceback.format_exc())
        gc.collect()
        return Exhausted()

    def _do(self, job: Job) -> Answer:
        match job:
            case CheckGrammar():
                try:
                    check(job.spec)
                except RequestError as error:
                    return Checked(str(error))
                return Checked(None)
            case TokenizeChat():
                return self._tokenize_chat(job)
            case Tokenize():
                tokenizer = self.load(job.tokenizer)
                return Tokens.of(
                    [
                        tokenizer.encode(text, job.add_special_tokens, job.parse_special)
                        for text in job.texts
                    ]
                )

    def _tokenize_chat(self, job: TokenizeChat) -> Answer:
        tokenizer = self._with_template(self.load(job.tokenizer), job.chat_template)
        messages, tools, options = job.parts()

        def check(text: str) -> None:
            if job.max_tokens is not None:
                tokenizer.check_length(text, job.max_tokens, "messages")

        ids = tokenize_chat(
            tokenizer,
            messages,
            job.add_generation_prompt,
            options,
            job.add_special_tokens,
            tools,
            check,
            job.continue_final_message,
        )
        return Tokens.of([ids])

    def _with_template(self, tokenizer: Tokenizer, template: str) -> Tokenizer:
        if not template:
            return tokenizer
        if self._templated is None or self._template != template:
            self._templated = tokenizer.with_chat_template(template)
            self._template = template
        return self._templated

    def load(self, path: str) -> Tokenizer:
        """Load a tokenizer. Raises TokenizerError."""
        if self._tokenizer is None or self._path != path:
            # The server has checked the template that it uses.
            self._tokenizer, self._path = load_tokenizer(path, check_templates=False), path
            self._templated = None
            gc.collect()
            gc.freeze()  # what is loaded lives until the end
        return self._tokenizer


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the fork server: fork a worker for each socket received, until our own socket ends."""
    parser = argparse.ArgumentParser(prog="penstock.sandbox.worker", description=__doc__)
    parser.add_argument("--fd", type=int, required=True, help="the inherited socket")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # only the front end decides what Ctrl-C means
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for keepers
    worker = Worker()
    server = os.getpid()
    with socket.socket(fileno=options.fd) as sock:
        while True:
            order, fds, _, _ = socket.recv_fds(sock, MAX_ORDER_BYTES, 1)
            if not order:
                return 0
            path = order[1:].decode()
            if path:
                with contextlib.suppress(PenstockError):  # the worker will say so of its job
                    worker.load(path)
            for fd in fds:  # none, if there was no room for it here
                try:
                    keeper = os.fork()
                except OSError:  # no process is to be had: who asked finds the socket closed
                    keeper = -1
                if keeper == 0:
                    sock.close()
                    os._exit(_keep(worker, fd, server))
                os.close(fd)


def _keep(worker: Worker, fd: int, server: int) -> int:
    """Run a worker on the socket ``fd``, and report on that socket why it ended."""
    _end_with(server)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with socket.socket(fileno=fd) as sock:
        keeper = os.getpid()
        try:
            pid = os.fork()
        except OSError:
            return 1
        if pid == 0:
            os._exit(_serve(worker, sock, keeper))
        gone = contextlib.suppress(OSError)  # the front end, as the worker finds too
        with gone:
            sock.sendall(encode(Started(pid)))
        _, status = os.waitpid(pid, 0)
        cause = _cause(status)
        if cause is not None:
            with gone:
                sock.sendall(encode(Died(cause)))
    return 0


def _serve(worker: Worker, sock: socket.socket, keeper: int) -> int:
    _end_with(keeper)
    limit(resource.RLIMIT_CORE, 0)
    limit(resource.RLIMIT_STACK, STACK_BYTES)
    limit(resource.RLIMIT_DATA, DATA_BYTES)
    limit(resource.RLIMIT_AS, 2 * DATA_BYTES)
    frames: FrameReader[Task] = FrameReader(Task)
    while tasks := frames.receive(sock):
        (task,) = tasks
        signal.setitimer(signal.ITIMER_PROF, task.cpu_s)
        answer = worker.answer(task.job)
        signal.setitimer(signal.ITIMER_PROF, 0)
        del task, tasks
        sock.sendall(_frame(answer))
    return 0


def _cause(status: int) -> Cause | None:
    """Return why a job ended its worker; None if the job was not the cause."""
    if not os.WIFSIGNALED(status):
        return None if status == 0 else "crash"
    match os.WTERMSIG(status):
        case signal.SIGPROF | signal.SIGXCPU:
            return "time"
        case signal.SIGKILL | signal.SIGABRT:  # the kernel, short of memory; Rust, likewise
            return "memory"
        case signal.SIGTERM | signal.SIGHUP | signal.SIGQUIT | signal.SIGUSR1 | signal.SIGUSR2:
            return None  # somebody ends processes
    return "crash"


def _end_with(parent: int) -> None:
    """End with the parent, which must have a single thread."""
    if not end_with_parent(parent):
        os._exit(1)


def limit(what: int, value: int) -> None:
    """Lower a resource limit of this process; a limit that is already lower stays."""
    _, hard = resource.getrlimit(what)
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    resource.setrlimit(what, (value, hard))


def _frame(answer: Answer) -> bytes:
    try:
        return encode(answer)
    except UnicodeEncodeError:  # a message may quote what a template has made
        return encode(Refused("the chat template wrote what is not Unicode text", "messages"))


if __name__ == "__main__":
    sys.exit(main())
