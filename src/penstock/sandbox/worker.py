"""A worker's process: takes one job after the other, under limits that end it.

Started as ``python -m penstock.sandbox.worker --fd N``. Jobs run in the main thread, whose stack is
bounded here and whose priority the front end lowers. What a job takes of processor time is counted
by a timer that ends the process: native code cannot be interrupted otherwise.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import resource
import signal
import socket
import sys
import traceback
from collections.abc import Sequence

from penstock.errors import PenstockError, RequestError, as_error
from penstock.sandbox import wire
from penstock.sandbox.jobs import (
    Answer,
    Checked,
    CheckGrammar,
    Exhausted,
    Failed,
    Job,
    Load,
    Loaded,
    Refused,
    Task,
    Tokenize,
    TokenizeChat,
    Tokens,
)
from penstock.tokenizer import Tokenizer, load_tokenizer
from penstock.tokenizer.chat_tokens import tokenize_chat

STACK_BYTES = 4 << 20
"""Of the thread that does jobs. The engine compiles what passes with sixteen times as much
(``grammar.constraints``): a grammar that fits here cannot overflow there. It is enough for 430
schemas of objects that refer to each other in a row."""
DATA_BYTES = 2 << 30
"""Of memory. Tokenizing takes up to 200 bytes for each of a text."""
_PR_SET_PDEATHSIG = 1  # prctl(2)


class Worker:
    """Does jobs. Keeps the tokenizer that the last one named."""

    def __init__(self) -> None:
        self._path = ""
        self._tokenizer: Tokenizer | None = None

    def answer(self, job: Job) -> Answer:
        """What comes of a job; never raises."""
        try:
            with as_error(lambda text: RequestError(f"a library failed on this input: {text}")):
                return self._do(job)
        except RequestError as error:
            return Refused(str(error), error.param)
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
                from penstock.grammar.compile import check  # only now: it loads llguidance

                try:
                    check(job.spec)
                except RequestError as error:
                    return Checked(str(error))
                return Checked(None)
            case TokenizeChat():
                return self._tokenize_chat(job)
            case Tokenize():
                tokenizer = self._load(job.tokenizer)
                return Tokens.of(
                    [
                        tokenizer.encode(text, job.add_special_tokens, job.parse_special)
                        for text in job.texts
                    ]
                )
            case Load():
                self._load(job.tokenizer)
                return Loaded()

    def _tokenize_chat(self, job: TokenizeChat) -> Answer:
        tokenizer = self._load(job.tokenizer)
        messages, tools, options = job.parts()
        ids = tokenize_chat(
            tokenizer,
            messages,
            job.add_generation_prompt,
            options,
            job.add_special_tokens,
            tools,
            lambda text: tokenizer.check_length(text, job.max_tokens, "messages"),
        )
        return Tokens.of([ids])

    def _load(self, path: str) -> Tokenizer:
        if self._tokenizer is None or self._path != path:
            self._tokenizer, self._path = load_tokenizer(path), path
            gc.collect()
            gc.freeze()  # what is loaded lives until the end
        return self._tokenizer


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="penstock.sandbox.worker", description=__doc__)
    parser.add_argument("--fd", type=int, required=True, help="the inherited socket")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # only the front end decides what Ctrl-C means
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    limit(resource.RLIMIT_CORE, 0)
    limit(resource.RLIMIT_STACK, STACK_BYTES)
    limit(resource.RLIMIT_DATA, DATA_BYTES)
    limit(resource.RLIMIT_AS, 2 * DATA_BYTES)
    worker = Worker()
    with socket.socket(fileno=options.fd) as sock:
        frames: wire.FrameBuffer[Task] = wire.FrameBuffer(Task)
        while (task := frames.receive(sock)) is not None:
            signal.setitimer(signal.ITIMER_PROF, task.cpu_s)
            answer = worker.answer(task.job)
            signal.setitimer(signal.ITIMER_PROF, 0)
            del task
            sock.sendall(_frame(answer))
    return 0


def _frame(answer: Answer) -> bytes:
    try:
        return wire.encode(answer)
    except UnicodeEncodeError:  # a message may quote what a template has made
        return wire.encode(Refused("the chat template wrote what is not Unicode text", "messages"))


def limit(what: int, value: int) -> None:
    """Lower a limit of this process; one that is lower already stays."""
    _, hard = resource.getrlimit(what)
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    resource.setrlimit(what, (value, hard))


if __name__ == "__main__":
    sys.exit(main())
