"""Grammars that ``LLM`` has found to be good, before its engine compiles them."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from penstock.errors import EngineDeadError, RequestError
from penstock.grammar.cache import GrammarCache
from penstock.grammar.spec import GrammarSpec
from penstock.sandbox.jobs import Checked, CheckGrammar
from penstock.sandbox.local import LocalWorker


class CheckedGrammars:
    """Checks each grammar once, in a worker process that a bad one may end. Safe to share between
    threads. Once it is closed it starts no worker."""

    def __init__(self) -> None:
        self._checked: GrammarCache[bool] = GrammarCache()
        self._worker = LocalWorker()
        self._closed = False
        self._lock = threading.RLock()

    def check(self, specs: Iterable[GrammarSpec]) -> None:
        """Raise RequestError unless all can be compiled, and EngineDeadError after the end."""
        with self._lock:
            if self._closed:
                raise EngineDeadError("this LLM is closed; make another")
            for spec in specs:
                if self._checked.get(spec) is None:
                    answer = self._worker.run(CheckGrammar.of(spec))
                    if isinstance(answer, Checked) and answer.fault is not None:
                        raise RequestError(answer.fault, "grammar")
                    self._checked.put(spec, True)

    def close(self) -> None:
        """End the worker, after a check that runs; safe to repeat."""
        if not self._worker.is_own:  # in a forked process, nobody may be left who holds the lock
            return
        with self._lock:
            self._closed = True
            self._worker.close()
