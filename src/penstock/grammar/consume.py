"""Taking a token without the GIL, by what llguidance offers for many matchers at a time."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Protocol

from llguidance import LLExecutor, LLMatcher, LLTokenizer

_STACK_BYTES = 64 << 20
"""The stack size, in address space, of llguidance's thread: it recurses as deep as a grammar is
nested."""


class Consumer(Protocol):
    """Has a matcher take a token."""

    def __call__(self, native: LLMatcher, token_id: int) -> tuple[bool, float]:
        """Returns whether the token was taken, and the seconds of processor time."""
        ...


def consume_here(native: LLMatcher, token_id: int) -> tuple[bool, float]:
    """Take the token in this thread, with the GIL held."""
    start = time.thread_time()
    taken = native.consume_token(token_id)
    return taken, time.thread_time() - start


class ConsumeBeside:
    """Takes tokens in a helper thread of llguidance, which releases the GIL meanwhile.

    Use only from the creating thread; the helper thread inherits its nice value. llguidance
    releases the GIL only if it is given several matchers; the second one is a grammar that has
    failed, which takes no token and no time.
    """

    def __init__(self, tokenizer: LLTokenizer) -> None:
        os.environ.setdefault("RUST_MIN_STACK", str(_STACK_BYTES))  # read when a thread starts
        before = _threads()
        self._executor = LLExecutor(num_threads=1)
        begun = _threads() - before
        # If other threads began in the same instant, ours cannot be distinguished from them, and
        # its time is not charged.
        self._clock = _clock_of(begun.pop()) if len(begun) == 1 else None
        self._failed = LLMatcher(tokenizer, "start: nowhere", log_level=0)

    def __call__(self, native: LLMatcher, token_id: int) -> tuple[bool, float]:
        start = self._seconds()
        taken, _ = self._executor.consume_token_par([(native, token_id), (self._failed, 0)])
        return taken, self._seconds() - start

    def _seconds(self) -> float:
        return 0.0 if self._clock is None else time.clock_gettime(self._clock)


class Consumers(threading.local):
    """The :class:`ConsumeBeside` of each thread, made when the thread first asks."""

    def __init__(self) -> None:
        self._own: ConsumeBeside | None = None

    def of_thread(self, tokenizer: LLTokenizer) -> ConsumeBeside:
        if self._own is None:
            self._own = ConsumeBeside(tokenizer)
        return self._own


def _threads() -> set[int]:
    return {int(each.name) for each in Path("/proc/self/task").iterdir()}


def _clock_of(thread: int) -> int:
    """The clock of a thread's processor time, as Linux makes it (MAKE_THREAD_CPUCLOCK)."""
    per_thread, scheduled = 4, 2
    return (~thread << 3) | per_thread | scheduled
