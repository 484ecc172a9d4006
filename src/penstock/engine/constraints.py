"""Compiles the grammars of requests, and computes their token masks, while steps run."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.engine.masks import Masks, MaskThreads, Pools
from penstock.errors import PenstockError, RequestError, first_line
from penstock.grammar.cache import GrammarCache
from penstock.grammar.spec import GrammarSpec
from penstock.grammar.threads import Bell, Job, Workers
from penstock.interface.mask import NO_MASKS, StepMasks

if TYPE_CHECKING:
    from penstock.grammar.compile import CompiledGrammar
    from penstock.grammar.tokens import Vocabulary
    from penstock.scheduler.sequence import SequenceState

_PATIENCE_S = 0.02
"""Seconds for which a step with nothing else to do waits for a grammar. New requests may wait as
long."""
_COMPILING_THREADS = 2
"""The number of compiling threads; a tenant uses at most one of these, since its grammars may take
seconds each."""
_KEPT = 32
"""Number of compiled grammars that are kept. One whose lexer has reached its limit of states takes
about 8 MB, and up to 50 MB where its expressions hold thousands of characters."""
_COMPILE_STACK_BYTES = 64 << 20
"""The stack size of a compiling thread, sixteen times that of the worker that has checked the
grammar (``sandbox.worker``): compiling recurses along references, computing a mask does not."""


@dataclass
class _Compilation:
    """The compilation of one grammar, for all requests that wait for it."""

    spec: GrammarSpec
    owner: str
    """The tenant whose request came first."""
    job: Job
    compiled: Future[CompiledGrammar]
    waiting: int = 0
    """The number of requests that wait for it."""


@dataclass
class _Waiting:
    leader: SequenceState
    compilation: _Compilation


class Constraints:
    """Everything between a request's GrammarSpec and the masks that the sampler is given.

    A request waits here until its grammar is compiled in a thread, where tenants take turns. The
    mask of a sequence's next token is begun as soon as its last token is known, and joined when
    the step that computes its logits is over: computing it releases the GIL, as the executor does.
    A late mask delays no other sequence (:class:`Masks`). Nothing is loaded or started before the
    first such request. Not thread-safe.
    """

    def __init__(
        self,
        tokenizer_path: str,
        vocab_size: int,
        eos_token_ids: Iterable[int] = (),
        mask_threads: MaskThreads | None = None,
    ) -> None:
        """``mask_threads`` replaces the threads that are started when they are first needed."""
        self._tokenizer_path = tokenizer_path
        self._vocab_size = vocab_size
        self._eos_token_ids = frozenset(eos_token_ids)
        self._waiting: dict[str, _Waiting] = {}
        self._cache: GrammarCache[_Compilation] = GrammarCache(_KEPT)
        self._vocabulary: Vocabulary | None = None
        self._making_vocabulary = threading.Lock()
        self._bell = Bell()
        self._compiling = Workers(
            "penstock-grammar",
            _COMPILING_THREADS,
            stack_bytes=_COMPILE_STACK_BYTES,
            most_of_one=1,
            bell=self._bell,
        )
        self._mask_threads = mask_threads
        self._masks: Masks | None = None  # before the first grammar there are none
        self.active = False
        """Whether a grammar has been compiled. Steps of engines without ask nothing else."""

    @property
    def num_waiting(self) -> int:
        """The number of sequences that wait for their grammar."""
        if not self._waiting:  # asked in every step
            return 0
        return sum(1 + len(each.leader.siblings) for each in self._waiting.values())

    def holds(self, request_id: str) -> bool:
        return request_id in self._waiting

    def add(self, leader: SequenceState, spec: GrammarSpec) -> None:
        """Let a request wait for its grammar, until :meth:`compiled` returns it."""
        found = self._cache.get(spec)
        if found is None or _is_spent(found.compiled):
            found = self._begun(leader.tenant.name, spec)
            self._cache.put(spec, found)
        found.waiting += 1
        self._waiting[leader.request_id] = _Waiting(leader, found)

    def abort(self, request_id: str) -> list[SequenceState]:
        """Forget a waiting request; returns its sequences, or none if it does not wait.

        Its grammar is not compiled any more, unless another request waits for it or that has begun.
        """
        found = self._waiting.pop(request_id, None)
        if found is None:
            return []
        found.compilation.waiting -= 1
        if found.compilation.waiting == 0:
            self._withdraw(found.compilation)
        return [found.leader, *found.leader.siblings]

    def compiled(
        self, patiently: bool
    ) -> tuple[list[SequenceState], list[tuple[SequenceState, str]]]:
        """The first sequences of the requests whose grammars are ready, and of those that failed.

        If ``patiently``, it waits a moment for one: there is nothing else to do.
        """
        if patiently:
            self._bell.wait(self._any_compiled, _PATIENCE_S)
        ready: list[SequenceState] = []
        failed: list[tuple[SequenceState, str]] = []
        for request_id, each in list(self._waiting.items()):
            compiled = each.compilation.compiled
            if not compiled.done():
                continue
            del self._waiting[request_id]
            each.compilation.waiting -= 1
            error = compiled.exception()
            if error is None:
                self._begin(each.leader, compiled.result())
                ready.append(each.leader)
            elif isinstance(error, PenstockError):
                failed.append((each.leader, str(error)))
            else:  # a defect, which must not be everybody's
                message = f"the grammar could not be compiled: {first_line(error)}"
                failed.append((each.leader, message))
        return ready, failed

    @property
    def num_awaiting(self) -> int:
        """The number of sequences that are not scheduled before their mask is done."""
        return 0 if self._masks is None else self._masks.num_awaiting

    def prepare(self, sequences: Iterable[SequenceState]) -> None:
        """Begin the masks of these sequences, except those that have ended."""
        if self._masks is not None:
            self._masks.begin(sequences)

    def release(self) -> list[SequenceState]:
        """See ``Masks.release``."""
        return [] if self._masks is None else self._masks.release()

    def wait_for_all(self, seconds: float) -> None:
        """See ``Masks.wait_for_all``."""
        if self._masks is not None:
            self._masks.wait_for_all(seconds)

    def masks(self, sequences: list[SequenceState], seconds: float) -> StepMasks:
        """The masks of the sequences' next tokens, as far as they are done within ``seconds``."""
        if self._masks is None or all(sequence.matcher is None for sequence in sequences):
            return NO_MASKS
        return self._masks.join(sequences, seconds)

    def wait(self) -> None:
        """Wait a moment for a mask that a sequence awaits."""
        if self._masks is not None:
            self._masks.wait(_PATIENCE_S)

    def close(self) -> None:
        """End the threads, after the grammars that are being compiled."""
        self._compiling.close()
        if self._masks is not None:
            self._masks.close()

    def _any_compiled(self) -> bool:
        return any(each.compilation.compiled.done() for each in self._waiting.values())

    def _begun(self, tenant: str, spec: GrammarSpec) -> _Compilation:
        future: Future[CompiledGrammar] = Future()

        def compile_it() -> None:
            try:
                future.set_result(self._compile(spec))
            except BaseException as error:  # a panic too must reach those who wait
                future.set_exception(error)

        self._compiling.submit([(tenant, compile_it)])
        return _Compilation(spec, tenant, compile_it, future)

    def _withdraw(self, compilation: _Compilation) -> None:
        if not self._compiling.withdraw(compilation.owner, compilation.job):
            return
        if self._cache.get(compilation.spec) is compilation:  # not evicted, and begun anew
            self._cache.drop(compilation.spec)

    def _begin(self, leader: SequenceState, grammar: CompiledGrammar) -> None:
        assert self._vocabulary is not None
        if self._masks is None:
            self._masks = Masks(self._mask_threads or Pools(self._bell))
            self.active = True
        silent = self._vocabulary.special_ids | self._vocabulary.eos_token_ids
        ending = leader.ending_token_ids & silent
        for sequence in (leader, *leader.siblings):
            sequence.matcher = grammar.start(ending)

    def _compile(self, spec: GrammarSpec) -> CompiledGrammar:
        # llguidance and a vocabulary are not loaded by engines that never see a grammar.
        from penstock.grammar.compile import compile_grammar
        from penstock.grammar.tokens import Vocabulary
        from penstock.tokenizer import has_tokenizer, load_tokenizer

        with self._making_vocabulary:
            vocabulary = self._vocabulary
            if vocabulary is None:
                path = Path(self._tokenizer_path)
                if path.is_dir() and not has_tokenizer(path):
                    raise RequestError(
                        f"the output cannot be constrained: {path} has no tokenizer; name a folder "
                        "that has one with --tokenizer",
                        "grammar",
                    )
                vocabulary = self._vocabulary = Vocabulary(
                    load_tokenizer(path, check_templates=False),
                    self._vocab_size,
                    self._eos_token_ids,
                )
        return compile_grammar(spec, vocabulary)


def _is_spent(found: Future[CompiledGrammar]) -> bool:
    """Whether a grammar must be compiled anew: it could not be, or its states have run out."""
    return found.done() and (found.exception() is not None or found.result().used_up)
