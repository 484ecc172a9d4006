"""Grammars that ``LLM`` has found to be good, before its engine compiles them."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.errors import RequestError
from penstock.grammar.cache import GrammarCache
from penstock.grammar.spec import GrammarSpec
from penstock.sandbox.jobs import Checked, CheckGrammar
from penstock.sandbox.local import LocalWorker


class CheckedGrammars:
    """Checks each grammar once, in a worker process that a bad one may end. Not safe to share
    between threads."""

    def __init__(self) -> None:
        self._checked: GrammarCache[bool] = GrammarCache()
        self._worker = LocalWorker()

    @property
    def is_own(self) -> bool:
        """Whether this is the process that made it, rather than one that was forked from it."""
        return self._worker.is_own

    def check(self, specs: Iterable[GrammarSpec]) -> None:
        """Raise RequestError unless all can be compiled."""
        for spec in specs:
            if self._checked.get(spec) is None:
                answer = self._worker.run(CheckGrammar.of(spec))
                if isinstance(answer, Checked) and answer.fault is not None:
                    raise RequestError(answer.fault, "grammar")
                self._checked.put(spec, True)

    def close(self) -> None:
        """End the worker."""
        self._worker.close()
