"""The grammars of an engine's requests: compiled, and their masks computed, beside its steps."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.errors import PenstockError, RequestError, first_line
from penstock.grammar.cache import GrammarCache
from penstock.grammar.masks import NO_MASKS, Masks, MaskThreads, Pools, StepMasks
from penstock.grammar.spec import GrammarSpec
from penstock.grammar.threads import Bell, Workers

if TYPE_CHECKING:
    from penstock.engine.request import Sequence
    from penstock.grammar.compile import CompiledGrammar
    from penstock.grammar.tokens import Vocabulary

_PATIENCE_S = 0.02
"""How long a step with nothing else to do waits for a grammar; arrivals wait as long."""
_COMPILING_THREADS = 2
"""Of which one tenant never has but one: its grammars may take seconds each."""
_KEPT = 32
"""Compiled grammars: one whose lexer has all the states it may have takes some 8 MB, and up to 50
where its expressions hold thousands of characters."""
_COMPILE_STACK_BYTES = 64 << 20
"""Sixteen times that of the worker which has checked the grammar (``sandbox.worker``): compiling
recurses along references, computing a mask does not."""


@dataclass
class _Waiting:
    leader: Sequence
    compiled: Future[CompiledGrammar]


class Constraints:
    """Everything between a request's GrammarSpec and the masks that the sampler is given.

    A request waits here until its grammar is compiled, in a thread for that, where tenants take
    turns. The mask of a sequence's next token is begun as soon as its last is known, and joined
    when the step that computes its logits is over: computing it lets go of the GIL, as the
    executor does. One that is late holds up nobody else (:class:`Masks`). Nothing is loaded or
    started before the first such request. Not thread-safe.
    """

    def __init__(
        self,
        tokenizer_path: str,
        vocab_size: int,
        eos_token_ids: Iterable[int] = (),
        mask_threads: MaskThreads | None = None,
    ) -> None:
        """``mask_threads``: instead of those that are started when they are needed."""
        self._tokenizer_path = tokenizer_path
        self._vocab_size = vocab_size
        self._eos_token_ids = frozenset(eos_token_ids)
        self._waiting: dict[str, _Waiting] = {}
        self._cache: GrammarCache[Future[CompiledGrammar]] = GrammarCache(_KEPT)
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

    @property
    def num_waiting(self) -> int:
        """Sequences that wait for their grammar."""
        return sum(1 + len(each.leader.siblings) for each in self._waiting.values())

    def holds(self, request_id: str) -> bool:
        return request_id in self._waiting

    def add(self, leader: Sequence, spec: GrammarSpec) -> None:
        """Let a request wait for its grammar; :meth:`compiled` gives it back."""
        found = self._cache.get(spec)
        if found is None or _is_spent(found):
            found = self._begun(leader.tenant.name, spec)
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
            self._bell.wait(self._any_compiled, _PATIENCE_S)
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

    @property
    def active(self) -> bool:
        """Whether there has been a grammar."""
        return self._masks is not None

    @property
    def num_awaiting(self) -> int:
        """Sequences that are not scheduled before their mask is there."""
        return 0 if self._masks is None else self._masks.num_awaiting

    def prepare(self, sequences: Iterable[Sequence]) -> None:
        """Begin the masks of those of these sequences that go on."""
        if self._masks is not None:
            self._masks.begin(sequences)

    def release(self) -> list[Sequence]:
        """As ``Masks.release``."""
        return [] if self._masks is None else self._masks.release()

    def settle(self, seconds: float) -> None:
        """As ``Masks.settle``."""
        if self._masks is not None:
            self._masks.settle(seconds)

    def masks(self, sequences: list[Sequence], seconds: float) -> StepMasks:
        """The masks of the sequences' next tokens, as far as they are there within ``seconds``."""
        if self._masks is None or all(sequence.matcher is None for sequence in sequences):
            return NO_MASKS
        return self._masks.join(sequences, seconds)

    def wait(self) -> None:
        """There is nothing to do before a mask is there, or a grammar: wait a moment for one."""
        if self._masks is not None:
            self._masks.wait(_PATIENCE_S)

    def close(self) -> None:
        """End the threads; a grammar that is being compiled is compiled to its end."""
        self._compiling.close()
        if self._masks is not None:
            self._masks.close()

    def _any_compiled(self) -> bool:
        return any(each.compiled.done() for each in self._waiting.values())

    def _begun(self, tenant: str, spec: GrammarSpec) -> Future[CompiledGrammar]:
        future: Future[CompiledGrammar] = Future()

        def compile_it() -> None:
            try:
                future.set_result(self._compile(spec))
            except Exception as error:
                future.set_exception(error)

        self._compiling.submit([(tenant, compile_it)])
        return future

    def _begin(self, leader: Sequence, grammar: CompiledGrammar) -> None:
        assert self._vocabulary is not None
        if self._masks is None:
            self._masks = Masks(self._mask_threads or Pools(self._bell))
        silent = self._vocabulary.special_ids | self._vocabulary.eos_token_ids
        ending = leader.ending_token_ids & silent
        for sequence in (leader, *leader.siblings):
            sequence.matcher = grammar.start(ending)

    def _compile(self, spec: GrammarSpec) -> CompiledGrammar:
        # llguidance and a vocabulary are not loaded by engines that never see a grammar.
        from penstock.grammar.compile import compile_grammar
        from penstock.grammar.tokens import Vocabulary
        from penstock.tokenizer import load_tokenizer

        with self._making_vocabulary:
            vocabulary = self._vocabulary
            if vocabulary is None:
                path = Path(self._tokenizer_path)
                if path.is_dir() and not (path / "tokenizer.json").exists():
                    raise RequestError(
                        f"the output cannot be constrained: {path} has no tokenizer.json; name a "
                        "folder that has one with --tokenizer",
                        "grammar",
                    )
                vocabulary = self._vocabulary = Vocabulary(
                    load_tokenizer(path), self._vocab_size, self._eos_token_ids
                )
        return compile_grammar(spec, vocabulary)


def _is_spent(found: Future[CompiledGrammar]) -> bool:
    """Whether a grammar must be compiled anew: it could not be, or its states have run out."""
    return found.done() and (found.exception() is not None or found.result().used_up)
