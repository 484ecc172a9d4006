"""Taking a token while the interpreter goes on: what llguidance offers for many, used for one."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Protocol

from llguidance import LLExecutor, LLMatcher, LLTokenizer

_STACK_BYTES = 64 << 20
"""Of address space, for a thread of llguidance's: it descends as deep as a grammar is nested."""


class Consumer(Protocol):
    """Has a matcher take tokens; tells whether it did, and the seconds of processor time."""

    def __call__(self, native: LLMatcher, token_id: int) -> tuple[bool, float]: ...


def consume_here(native: LLMatcher, token_id: int) -> tuple[bool, float]:
    """In this thread, with the interpreter's lock held."""
    start = time.thread_time()
    taken = native.consume_token(token_id)
    return taken, time.thread_time() - start


class ConsumeBeside:
    """In a thread of llguidance's, so that nobody waits for the lock meanwhile.

    For the thread that made it alone, whose priority that thread has. llguidance lets go of the
    lock only where it has several matchers to serve; the second one is a grammar that has failed,
    which takes nothing and no time.
    """

    def __init__(self, tokenizer: LLTokenizer) -> None:
        os.environ.setdefault("RUST_MIN_STACK", str(_STACK_BYTES))  # read when a thread starts
        before = _threads()
        self._executor = LLExecutor(num_threads=1)
        begun = _threads() - before
        # Where others began threads in the same instant, nobody knows which is ours, and what it
        # does is not charged.
        self._clock = _clock_of(begun.pop()) if len(begun) == 1 else None
        self._failed = LLMatcher(tokenizer, "start: nowhere", log_level=0)

    def __call__(self, native: LLMatcher, token_id: int) -> tuple[bool, float]:
        start = self._seconds()
        taken, _ = self._executor.consume_token_par([(native, token_id), (self._failed, 0)])
        return taken, self._seconds() - start

    def _seconds(self) -> float:
        return 0.0 if self._clock is None else time.clock_gettime(self._clock)


class Consumers(threading.local):
    """One for each thread that asks."""

    def __init__(self) -> None:
        self._own: ConsumeBeside | None = None

    def of_thread(self, tokenizer: LLTokenizer) -> ConsumeBeside:
        if self._own is None:
            self._own = ConsumeBeside(tokenizer)
        return self._own


def _threads() -> set[int]:
    return {int(each.name) for each in Path("/proc/self/task").iterdir()}


def _clock_of(thread: int) -> int:
    """The clock of processor time of a thread of this process (MAKE_THREAD_CPUCLOCK of Linux)."""
    per_thread, scheduled = 4, 2
    return (~thread << 3) | per_thread | scheduled
