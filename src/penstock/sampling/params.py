"""How to choose tokens: the options of one request."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from penstock.errors import RequestError
from penstock.grammar.spec import GrammarSpec

MAX_LOGPROBS = 20
MAX_SEQUENCES = 128
MAX_STOPS = 64
MAX_STOP_CHARS = 1024
"""Of one stop string: its automaton takes some 400 bytes a character."""

MAX_MAGNITUDE = 1e4
"""Of temperatures and repetition penalties."""


class Range(NamedTuple):
    """The values that an option may have. Integers where ``low`` is one, else any number."""

    low: float
    high: float | None = None
    """None: no limit."""
    open_low: bool = False
    """``low`` itself is not among them."""


RANGES: Mapping[str, Range] = {
    "n": Range(1, MAX_SEQUENCES),
    "temperature": Range(0.0, MAX_MAGNITUDE),
    "top_k": Range(-1),
    "top_p": Range(0.0, 1.0, open_low=True),
    "min_p": Range(0.0, 1.0),
    "repetition_penalty": Range(0.0, MAX_MAGNITUDE, open_low=True),
    "presence_penalty": Range(-2.0, 2.0),
    "frequency_penalty": Range(-2.0, 2.0),
    "seed": Range(-(2**63), 2**64 - 1),
    "max_tokens": Range(1),
    "min_tokens": Range(0),
    "logprobs": Range(0, MAX_LOGPROBS),
    "prompt_logprobs": Range(0, MAX_LOGPROBS),
    "logit_bias": Range(-100.0, 100.0),
}
"""By option; ``logit_bias`` is that of each token."""


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The sampling options of one request, under the names that vLLM users know.

    The order in which they act on a row of logits is fixed: logit bias, minimum length,
    penalties (repetition, then frequency and presence), grammar, temperature, top-k, top-p, min-p.
    Log-probabilities are of the logits before all of them.
    Invalid values raise :class:`~penstock.errors.RequestError` from :meth:`validate`, which the
    engine calls for every request.
    """

    n: int = 1
    """Sequences to generate from one prompt; they share the prompt's cache blocks."""
    temperature: float = 1.0
    """0 means greedy."""
    top_k: int = 0
    """Keep the k most likely tokens; 0 keeps all."""
    top_p: float = 1.0
    """Keep the fewest most likely tokens whose probabilities sum to at least this."""
    min_p: float = 0.0
    """Keep tokens at least this fraction as likely as the most likely one."""
    repetition_penalty: float = 1.0
    """Divides positive and multiplies negative logits of tokens in prompt or output."""
    presence_penalty: float = 0.0
    """Subtracted once from tokens that occur in the output."""
    frequency_penalty: float = 0.0
    """Subtracted per occurrence in the output."""
    seed: int | None = None
    """Same seed, same text, whatever else runs. None: drawn when the request arrives."""
    max_tokens: int | None = None
    """None: up to the model's context."""
    min_tokens: int = 0
    """No end-of-sequence or stop before this many output tokens."""
    stop: tuple[str, ...] = ()
    """The text ends before the first of these."""
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    logprobs: int | None = None
    """Log-probabilities of this many most likely tokens (and the chosen one) per output token."""
    prompt_logprobs: int | None = None
    """The same for each prompt token but the first."""
    logit_bias: dict[int, float] | None = None
    """Added to these tokens' logits; -inf is not allowed, -100 bans in practice."""
    skip_special_tokens: bool = True
    grammar: GrammarSpec | None = None
    """What the output must be, as a whole. Tokens that end the sequence and have no text (ends of
    sequence, special ``stop_token_ids``) are allowed exactly where the output is complete; where
    nothing can follow it ends, even before ``min_tokens`` and with ``ignore_eos``. Only
    ``max_tokens``, the context, and stops that are text end it before it is complete."""

    def validate(self, vocab_size: int | None = None) -> None:
        """Raise RequestError naming the first option that is out of range."""
        for name, allowed in RANGES.items():
            value = getattr(self, name)
            if value is not None and name != "logit_bias":
                _check(name, value, allowed)
        if self.max_tokens is not None:
            _check("min_tokens", self.min_tokens, Range(0, self.max_tokens))
        if len(self.stop) > MAX_STOPS or len(self.stop_token_ids) > MAX_STOPS:
            raise RequestError(f"at most {MAX_STOPS} stops are allowed", "stop")
        if any(not isinstance(s, str) or not s for s in self.stop):
            raise RequestError("stop strings must be non-empty text", "stop")
        if any(len(s) > MAX_STOP_CHARS for s in self.stop):
            raise RequestError(
                f"a stop string may have {MAX_STOP_CHARS} characters, and one is longer", "stop"
            )
        for token, bias in (self.logit_bias or {}).items():
            _check("logit_bias", bias, RANGES["logit_bias"])
            _token("logit_bias", token, vocab_size)
        for token in self.stop_token_ids:
            _token("stop_token_ids", token, vocab_size)
        if self.grammar is not None and not isinstance(self.grammar, GrammarSpec):
            raise RequestError(
                f"grammar must be a GrammarSpec, not {type(self.grammar).__name__}", "grammar"
            )

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0


def _check(name: str, value: float, allowed: Range) -> None:
    if isinstance(allowed.low, int):
        _check_integer(name, value, allowed)
    else:
        _check_number(name, value, allowed)


def _check_number(name: str, value: float, allowed: Range) -> None:
    low, high, open_low = allowed
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not _finite(value):
        raise RequestError(f"{name} must be a finite number, not {value!r}", name)
    if value < low or (high is not None and value > high) or (open_low and value == low):
        assert high is not None  # every range of numbers has two ends
        bracket = "(" if open_low else "["
        raise RequestError(f"{name} must be in {bracket}{low:g}, {high:g}], not {value!r}", name)


def _finite(value: float) -> bool:
    """Of integers too that no float can hold, which math.isfinite() does not take."""
    return isinstance(value, int) or math.isfinite(value)


def _check_integer(name: str, value: float, allowed: Range) -> None:
    low, high, _ = allowed
    if isinstance(value, bool) or not isinstance(value, int):
        raise RequestError(f"{name} must be an integer, not {value!r}", name)
    if value < low or (high is not None and value > high):
        limit = f"at least {low}" if high is None else f"from {low} to {high}"
        raise RequestError(f"{name} must be {limit}, not {value}", name)


def _token(name: str, token: int, vocab_size: int | None) -> None:
    _check(name, token, Range(0))
    if vocab_size is not None and token >= vocab_size:
        raise RequestError(
            f"{name} holds token id {token}, outside the vocabulary of {vocab_size}", name
        )
