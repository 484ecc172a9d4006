"""The grammars of an engine's requests: compiled, and their masks computed, beside its steps."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.errors import PenstockError, RequestError, first_line
from penstock.grammar.cache import GrammarCache
from penstock.grammar.spec import GrammarSpec
from penstock.sampling.mask import TokenMask

if TYPE_CHECKING:
    from penstock.engine.request import Sequence
    from penstock.grammar.compile import CompiledGrammar
    from penstock.grammar.matcher import Matcher
    from penstock.grammar.tokens import Vocabulary

_PATIENCE_S = 0.02
"""How long a step with nothing else to do waits for a grammar; arrivals wait as long."""
_CPUS_PER_THREAD = 8
_MAX_MASK_THREADS = 4
_COMPILE_STACK_BYTES = 64 << 20
"""Sixteen times that of the worker which has checked the grammar (``sandbox.worker``): compiling
recurses along references, computing a mask does not."""


@dataclass
class _Waiting:
    leader: Sequence
    compiled: Future[CompiledGrammar]


class Constraints:
    """Everything between a request's GrammarSpec and the masks that the sampler is given.

    A request waits here until its grammar is compiled, in a thread of its own. The mask of a
    sequence's next token is begun as soon as its last is known, and joined when the step that
    computes its logits is over: computing it lets go of the GIL, as the executor does. Nothing is
    loaded or started before the first such request. Not thread-safe.
    """

    def __init__(
        self, tokenizer_path: str, vocab_size: int, eos_token_ids: Iterable[int] = ()
    ) -> None:
        self._tokenizer_path = tokenizer_path
        self._vocab_size = vocab_size
        self._eos_token_ids = frozenset(eos_token_ids)
        self._waiting: dict[str, _Waiting] = {}
        self._cache: GrammarCache[Future[CompiledGrammar]] = GrammarCache()
        self._vocabulary: Vocabulary | None = None  # made and read by the compiling thread
        self._threads: _Threads | None = None
        self._masks: dict[Matcher, Future[None]] = {}

    @property
    def num_waiting(self) -> int:
        """Sequences that wait for their grammar."""
        return sum(1 + len(each.leader.siblings) for each in self._waiting.values())

    def holds(self, request_id: str) -> bool:
        return request_id in self._waiting

    def add(self, leader: Sequence, spec: GrammarSpec) -> None:
        """Let a request wait for its grammar; :meth:`compiled` gives it back."""
        found = self._cache.get(spec)
        if found is None or (found.done() and found.exception() is not None):
            if self._threads is None:
                self._threads = _Threads()
            found = self._threads.compile(self._compile, spec)
            self._cache.put(spec, found)
        self._waiting[leader.request_id] = _Waiting(leader, found)

    def abort(self, request_id: str) -> list[Sequence]:
        """Forget a waiting request; returns its sequences, none if it does not wait."""
        found = self._waiting.pop(request_id, None)
        return [] if found is None else [found.leader, *found.leader.siblings]

    def compiled(self, patiently: bool) -> tuple[list[Sequence], list[tuple[Sequence, str]]]:
        """First sequences of the requests whose grammars are ready, and of those that failed.

        ``patiently``: there is nothing else to do, so wait a moment for one.
        """
        if patiently:
            wait([each.compiled for each in self._waiting.values()], _PATIENCE_S, "FIRST_COMPLETED")
        ready: list[Sequence] = []
        failed: list[tuple[Sequence, str]] = []
        for request_id, each in list(self._waiting.items()):
            if not each.compiled.done():
                continue
            del self._waiting[request_id]
            error = each.compiled.exception()
            if error is None:
                self._begin(each.leader, each.compiled.result())
                ready.append(each.leader)
            elif isinstance(error, PenstockError):
                failed.append((each.leader, str(error)))
            else:  # a defect, which must not be everybody's
                message = f"the grammar could not be compiled: {first_line(error)}"
                failed.append((each.leader, message))
        return ready, failed

    def prepare(self, sequences: Iterable[Sequence]) -> None:
        """Begin the masks of those of these sequences that go on."""
        if self._threads is None:
            return
        matchers = [
            sequence.matcher
            for sequence in sequences
            if sequence.matcher is not None
            and sequence.finish_reason is None
            and not sequence.matcher.known
            and sequence.matcher not in self._masks
        ]
        self._masks.update(self._threads.compute(matchers))

    def masks(self, sequences: list[Sequence]) -> list[TokenMask | None] | None:
        """The masks of the sequences' next tokens; None where all tokens are allowed, and instead
        of a list of nothing else."""
        if self._threads is None or all(sequence.matcher is None for sequence in sequences):
            return None
        masks: list[TokenMask | None] = []
        for sequence in sequences:
            matcher = sequence.matcher
            if matcher is None:
                masks.append(None)
                continue
            begun = self._masks.pop(matcher, None)
            if begun is not None:
                begun.result()
            masks.append(matcher.mask)
        if self._masks:
            self._masks = {m: begun for m, begun in self._masks.items() if not begun.done()}
        return masks

    def close(self) -> None:
        """End the threads; a grammar that is being compiled is compiled to its end."""
        if self._threads is not None:
            self._threads.close()

    def _begin(self, leader: Sequence, grammar: CompiledGrammar) -> None:
        assert self._vocabulary is not None
        silent = self._vocabulary.special_ids | self._vocabulary.eos_token_ids
        ending = leader.ending_token_ids & silent
        for sequence in (leader, *leader.siblings):
            sequence.matcher = grammar.start(ending)

    def _compile(self, spec: GrammarSpec) -> CompiledGrammar:
        # llguidance and a vocabulary are not loaded by engines that never see a grammar.
        from penstock.grammar.compile import compile_grammar
        from penstock.grammar.tokens import Vocabulary
        from penstock.tokenizer import load_tokenizer

        if self._vocabulary is None:
            path = Path(self._tokenizer_path)
            if path.is_dir() and not (path / "tokenizer.json").exists():
                raise RequestError(
                    f"the output cannot be constrained: {path} has no tokenizer.json; name a "
                    "folder that has one with --tokenizer",
                    "grammar",
                )
            self._vocabulary = Vocabulary(
                load_tokenizer(path), self._vocab_size, self._eos_token_ids
            )
        return compile_grammar(spec, self._vocabulary)


class _Threads:
    def __init__(self) -> None:
        self.compiling = ThreadPoolExecutor(1, "penstock-grammar")
        count = min(max((os.cpu_count() or 1) // _CPUS_PER_THREAD, 1), _MAX_MASK_THREADS)
        self._count = count
        self._computing = ThreadPoolExecutor(count, "penstock-masks")

    def compile(
        self, work: Callable[[GrammarSpec], CompiledGrammar], spec: GrammarSpec
    ) -> Future[CompiledGrammar]:
        """Compile a grammar in the one thread that has the stack for it."""
        usual = threading.stack_size(_COMPILE_STACK_BYTES)  # read when the thread starts
        try:
            return self.compiling.submit(work, spec)
        finally:
            threading.stack_size(usual)

    def compute(self, matchers: list[Matcher]) -> dict[Matcher, Future[None]]:
        """Compute masks: a job a thread, as each has a cost."""
        begun: dict[Matcher, Future[None]] = {}
        for first in range(min(self._count, len(matchers))):
            share = matchers[first :: self._count]
            begun.update(dict.fromkeys(share, self._computing.submit(_compute, share)))
        return begun

    def close(self) -> None:
        self.compiling.shutdown(wait=True, cancel_futures=True)
        self._computing.shutdown(wait=True, cancel_futures=True)


def _compute(matchers: list[Matcher]) -> None:
    for matcher in matchers:
        matcher.compute()
