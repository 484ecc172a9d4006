"""The state of one sequence in its grammar, and which tokens may come next."""

from __future__ import annotations

from collections.abc import Callable
from time import thread_time

import numpy as np
from llguidance import LLMatcher, LLTokenizer

from penstock.errors import first_line, is_panic
from penstock.grammar.consume import Consumer, consume_here
from penstock.grammar.notation import readable
from penstock.grammar.tokens import Vocabulary
from penstock.interface.mask import TokenMask, words_for

MOST_SECONDS = 0.1
"""The most processor time for taking one token, and for one mask. Grammars of 1,000 properties or
3,000 choices took less than 4 ms; for ambiguous ones it grows with the square of the text."""
ALLOWANCE_SECONDS = 2.0
SECONDS_PER_TOKEN = 0.02
"""The processor time that a sequence may take in total: the allowance, and so much more for each
token. That is two hundred times the average of masks; sixteen sequences that use all of it keep
one processor busy."""
SLOW_SECONDS = 0.002
"""If the work for a token is expected to take longer, the engine's thread neither does it nor waits
for it."""
_REMEMBERED = 0.9
"""The part of a slow mask's time that is expected of the next one: after one mask of 0.1 s, the
next 37 are treated as slow."""
_TOO_SLOW = (
    f"reading one token of the text takes more than {MOST_SECONDS} s; make it less ambiguous"
)
_TOO_MUCH = (
    f"on average, each token of the text takes more than {SECONDS_PER_TOKEN} s of processor time, "
    f"beyond {ALLOWANCE_SECONDS:g} s in all; make it less ambiguous (one way to read each text)"
)
_STUCK = "no token of this model continues the text, and the text is not complete"
_STOPS = {
    "NoExtension": _STUCK,
    "NoExtensionBias": _STUCK,
    "ParserTooComplex": "there are too many ways to read the text; make it less ambiguous",
    "LexerTooComplex": "its expressions are too complex; simplify them",
}
"""Messages by llguidance's reasons to stop."""


_USED_UP = "too many states"
"""What llguidance says of a lexer that has as many states as it may have."""


class Origin:
    """What the matchers of one grammar have in common.

    Copies of a native matcher share the states of its lexer, of which there may be so many. What
    one sequence needs must not depend on what others have used up: a matcher that finds none left
    goes on with a lexer of its own.
    """

    def __init__(self, make: Callable[[], LLMatcher]) -> None:
        """``make`` compiles the grammar anew."""
        self.make = make
        self.used_up = False
        """The states that are shared have run out: new sequences should not begin with them."""


class Matcher:
    """The parser of one sequence, whose masks depend on the grammar and its tokens alone. Not
    thread-safe.

    A mask has all tokens after which the text can still come to satisfy the grammar, however the
    text is cut into tokens. Tokens of ``ending`` are among them exactly where the text may end.
    After an ``error`` every mask is empty.

    A ``slow`` matcher only notes the tokens that it is given, and takes them when its next mask is
    computed, which may be in another thread. Until then it is ``behind``.
    """

    def __init__(
        self,
        native: LLMatcher,
        vocabulary: Vocabulary,
        origin: Origin,
        ending: frozenset[int] = frozenset(),
    ) -> None:
        self._native = native
        self.origin = origin
        self._vocabulary = vocabulary
        self._ending = np.array(sorted(ending), np.int64)
        self._mask: TokenMask | None = None
        self._accepts = False
        self._taken: list[int] = []
        self._shared = False  # its lexer, with copies or with what it was copied from
        self._untaken: list[int] = []
        self.complete = False
        """Whether the text is complete and nothing can follow it. Unknown while ``behind``."""
        self._spent = 0.0  # seconds of processor time
        self._expected = 0.0  # of the next mask, by those before it
        self.error: str | None = None
        """Why no token can follow: the grammar reached a limit, or no token continues the text.
        None if one can."""

    def clone(self, ending: frozenset[int] | None = None) -> Matcher:
        """A copy of the state, independent of this one. ``ending`` is the same if None."""
        if ending is None:
            ending = frozenset(self._ending.tolist())
        self._take(consume_here)
        # Behind an error it is not used again, and what panicked may not be used again.
        native = self._native.deep_copy() if self.error is None else self._native
        other = Matcher(native, self._vocabulary, self.origin, ending)
        self._shared = other._shared = True
        other._mask, other._accepts = self._text_mask(), self._accepts
        if other._mask is not None:
            other._let_end(other._mask)
        other._taken, other.error = self._taken.copy(), self.error
        other.complete = self.complete
        other._spent, other._expected = self._spent, self._expected
        return other

    def learn(self, clone: Matcher) -> None:
        """Charge the processor time of a clone to this matcher."""
        self._spent = max(self._spent, clone._spent)
        self._expected = max(self._expected, clone._expected)

    @property
    def slow(self) -> bool:
        """Whether the next mask is expected to take longer than a step should wait for it."""
        return self._expected > SLOW_SECONDS

    @property
    def tokenizer(self) -> LLTokenizer:
        return self._vocabulary.native

    @property
    def behind(self) -> bool:
        """Whether there are tokens that it was given and has not taken yet."""
        return bool(self._untaken)

    @property
    def known(self) -> bool:
        """Whether the mask of the next token has been computed."""
        return self._mask is not None

    @property
    def mask(self) -> TokenMask:
        """The mask of the next token, read-only. It is computed now if it was not."""
        if self._mask is None:
            self.compute()
            assert self._mask is not None
        return self._mask

    @property
    def accepts(self) -> bool:
        """Whether the text so far satisfies the grammar."""
        if self._mask is None:
            self.compute()
        return self._accepts

    @property
    def allows_text(self) -> bool:
        """Whether another token of text may follow."""
        if self._mask is None:
            self.compute()
        mask = self._text_mask()
        return mask is not None and bool(mask.any())

    def compute(self, consume: Consumer = consume_here) -> None:
        """Compute :attr:`mask` without the GIL, after ``consume`` has taken the tokens noted."""
        self._expected *= _REMEMBERED
        self._take(consume)
        start = thread_time()
        words = words_for(self._vocabulary.vocab_size)
        # One more bit is llguidance's own end of text.
        row = np.zeros(words_for(self._vocabulary.vocab_size + 1), np.uint32)
        mask = row[:words]
        try:
            self._fill(row, mask)
        except BaseException as error:
            self._panicked(error)
        self._charge(thread_time() - start)
        if self.error is not None:
            mask[:] = 0
            self._accepts = False
        self._mask = mask

    def fail(self, message: str) -> None:
        """Let no token follow, with this message as the :attr:`error`."""
        self.error = message
        self._untaken.clear()
        self._accepts = False
        self._mask = np.zeros(words_for(self._vocabulary.vocab_size), np.uint32)

    def advance(self, token_id: int) -> bool:
        """Take the next token of text; returns whether the text is known to be ``complete``."""
        self._mask = None
        self._untaken.append(token_id)
        if not self.slow:
            self._take(consume_here, renew=False)
        return self.complete

    def rollback(self, count: int) -> None:
        """Take back the last ``count`` tokens. Raises ValueError if there are fewer, or after an
        error."""
        self._take(consume_here)
        if self.error is not None or not 0 <= count <= len(self._taken):
            raise ValueError(f"{count} of {len(self._taken)} tokens cannot be taken back")
        if count and not self._native.rollback(count):
            raise ValueError(f"{count} tokens cannot be taken back: {self._native.get_error()}")
        if count:
            del self._taken[-count:]
            self._mask, self.complete = None, False

    def _take(self, consume: Consumer, renew: bool = True) -> None:
        """Take the tokens that were noted; without ``renew``, only as far as there are states."""
        if not self._untaken:
            return
        try:
            for done, token_id in enumerate(self._untaken):
                if self.error is not None or self.complete:
                    break
                taken, seconds = consume(self._native, token_id)
                if self._lacks_states():
                    if not renew:  # compiling may take long: it is left to a thread for slow work
                        self._expected = MOST_SECONDS
                        del self._untaken[:done]
                        return
                    self._renew()
                    taken, seconds = consume(self._native, token_id)
                self._taken.append(token_id)
                if not taken or self._native.is_error():
                    self._fail()
                elif not self._native.is_stopped():
                    self._charge(seconds)
                elif self._native.is_accepting():
                    self.complete = True
                else:
                    self.error = _STUCK
        except BaseException as error:
            self._panicked(error)
        self._untaken.clear()

    def _fill(self, row: TokenMask, mask: TokenMask) -> None:
        """Write the mask; ``row`` has one more bit, and is all zeros."""
        if self.error is None and not self.complete:
            self._native.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
            if self._lacks_states():
                self._renew()
                self._native.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
            if self._native.is_error():
                self._fail()
        if self.error is None and not self.complete:
            mask &= self._vocabulary.usable
            self._accepts = self._native.is_accepting()
            if self._accepts:
                self._let_end(mask)
            elif not mask.any():
                self.error = _STUCK
        elif self.error is None:
            self._accepts = True
            self._let_end(mask)

    def _lacks_states(self) -> bool:
        """Whether it failed for want of states that others have used up, too."""
        return self._shared and self._native.is_error() and _USED_UP in self._native.get_error()

    def _renew(self) -> None:
        """Go on where it was, with a lexer of its own."""
        self.origin.used_up = True
        self._native, self._shared = self.origin.make(), False
        if self._taken:
            self._native.consume_tokens(self._taken)

    def _text_mask(self) -> TokenMask | None:
        """The mask without tokens that end the text, as a copy."""
        if self._mask is None:
            return None
        return self._mask & self._vocabulary.usable

    def _let_end(self, mask: TokenMask) -> None:
        if self._accepts and len(self._ending):
            bits = np.uint32(1) << (self._ending % 32).astype(np.uint32)
            np.bitwise_or.at(mask, self._ending // 32, bits)

    def _charge(self, seconds: float) -> None:
        """Charge this work, and set the error if it, or the total, is above its limit."""
        self._spent += seconds
        self._expected = max(self._expected, seconds)
        if self.error is None and seconds > MOST_SECONDS:
            self.error = _TOO_SLOW
        if self.error is None and self._spent > (
            ALLOWANCE_SECONDS + SECONDS_PER_TOKEN * len(self._taken)
        ):
            self.error = _TOO_MUCH

    def _panicked(self, error: BaseException) -> None:
        """Give up where llguidance panicked; every other exception is raised again."""
        if not is_panic(error):
            raise error
        self.error = f"llguidance failed on this text: {first_line(error)}"

    def _fail(self) -> None:
        message = readable(self._native.get_error())
        if _USED_UP in message:
            message = "LexerTooComplex"
        self.error = _STOPS.get(message, message)
