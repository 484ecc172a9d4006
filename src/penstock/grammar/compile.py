"""The compiling of a request's grammar for llguidance, and the limits on it.

The most work that was found to pass every limit (5,000 properties in 128 KiB) takes 0.9 s of
processor time and 50 MB.
"""

from __future__ import annotations

import numpy as np
from llguidance import LLMatcher

from penstock.grammar.limits import fault, parser_limits
from penstock.grammar.matcher import Matcher, Origin
from penstock.grammar.notation import lark_of, refusal
from penstock.grammar.spec import GrammarSpec
from penstock.grammar.tokens import Vocabulary, byte_vocabulary
from penstock.interface.mask import words_for


def check(spec: GrammarSpec, param: str = "grammar") -> None:
    """Raise RequestError, naming the field ``param``, unless the grammar can be compiled.

    It needs no tokenizer, so what a Lark grammar names of tokens is only looked at when it is
    compiled. It mostly takes milliseconds, but nothing bounds it, and it may overflow the stack:
    what comes from outside is checked in a worker process
    (:class:`penstock.sandbox.jobs.CheckGrammar`).
    """
    lark = lark_of(spec, param)
    message = fault(lark)
    if message is not None:
        raise refusal(spec, message, param)
    # What only compiling takes (of nested counts, a thousand times as long as looking at them) is
    # found out here too, for a vocabulary of bytes. Whatever depends on tokens the engine will say.
    native = LLMatcher(byte_vocabulary(), lark, log_level=0, limits=parser_limits())
    if not native.is_error():
        row = np.zeros(words_for(257), np.uint32)
        native.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
        native.deep_copy()


def compile_grammar(
    spec: GrammarSpec, vocabulary: Vocabulary, param: str = "grammar"
) -> CompiledGrammar:
    """Compile a grammar that has passed :func:`check` in a worker process.

    Raises RequestError, naming the field ``param``, unless there is a text that it allows.
    """
    lark = lark_of(spec, param)

    def make() -> LLMatcher:
        return LLMatcher(vocabulary.native, lark, log_level=0, limits=parser_limits())

    native = make()
    if native.is_error():
        message = native.get_error()
    else:
        compiled = CompiledGrammar(Matcher(native, vocabulary, Origin(make)))
        if compiled.error is None:
            return compiled
        message = compiled.error
    raise refusal(spec, message, param)


class CompiledGrammar:
    """A grammar before its first token, which threads and sequences share."""

    def __init__(self, start: Matcher) -> None:
        """Computes the first mask, which all sequences share."""
        start.compute()
        self._start = start
        self.error = start.error
        """Why no text satisfies it."""
        if self.error is None and not start.allows_text:
            self.error = "nothing but the empty text satisfies it"

    @property
    def used_up(self) -> bool:
        """Whether it should be compiled anew for further sequences; those it has go on."""
        return self._start.origin.used_up

    def start(self, ending: frozenset[int]) -> Matcher:
        """The state of a sequence without output; ``ending`` tokens end it where they may."""
        return self._start.clone(ending)
