"""How to choose tokens: the options of one request."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import astuple, force_setattr

from penstock.errors import RequestError, shown
from penstock.grammar.spec import GrammarSpec
from penstock.interface.token_ids import check_token_ids

MAX_LOGPROBS = 20
MAX_SEQUENCES = 128
MAX_STOPS = 64
MAX_STOP_CHARS = 1024
"""Maximum number of characters in one stop string: its automaton takes some 400 bytes per
character."""

MAX_INT64 = 2**63 - 1
"""Upper bound of counts without a limit of their own: the largest that can be sent to the
engine."""

MAX_MAGNITUDE = 1e4
"""Upper bound of temperatures and repetition penalties."""


class Range(NamedTuple):
    """Allowed values of an option: integers if ``low`` is an integer, else any numbers."""

    low: float
    high: float | None = None
    """Upper bound, inclusive; None means no limit."""
    open_low: bool = False
    """Whether ``low`` itself is excluded."""


RANGES: Mapping[str, Range] = {
    "n": Range(1, MAX_SEQUENCES),
    "temperature": Range(0.0, MAX_MAGNITUDE),
    "top_k": Range(-1, MAX_INT64),
    "top_p": Range(0.0, 1.0, open_low=True),
    "min_p": Range(0.0, 1.0),
    "repetition_penalty": Range(0.0, MAX_MAGNITUDE, open_low=True),
    "presence_penalty": Range(-2.0, 2.0),
    "frequency_penalty": Range(-2.0, 2.0),
    "seed": Range(-(2**63), 2**64 - 1),
    "max_tokens": Range(1, MAX_INT64),
    "min_tokens": Range(0, MAX_INT64),
    "logprobs": Range(0, MAX_LOGPROBS),
    "prompt_logprobs": Range(0, MAX_LOGPROBS),
    "logit_bias": Range(-100.0, 100.0),
}
"""Allowed values of each option; for ``logit_bias``, of each token's bias."""


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The sampling options of one request, under the names that vLLM users know.

    The order in which they act on a row of logits is fixed: logit bias, minimum length,
    penalties (repetition, then frequency and presence), grammar, temperature, top-k, top-p, min-p.
    Log-probabilities are of the logits before all of them.
    Invalid values raise :class:`~penstock.errors.RequestError` from :meth:`validate`, which the
    engine calls for every request. Numbers of NumPy are taken as Python's, a text for ``stop`` as
    one stop, a number for ``stop_token_ids`` as one token, lists as tuples, and None for either as
    none.
    """

    n: int = 1
    """Sequences to generate from one prompt; they share the prompt's cache blocks."""
    temperature: float = 1.0
    """Divides the logits before sampling; 0 means greedy decoding."""
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
    """With the same seed the text is the same, whatever else runs. None: drawn when the request
    arrives."""
    max_tokens: int | None = None
    """Maximum number of output tokens. None: up to the model's context length. A number that does
    not fit there after the prompt is refused."""
    min_tokens: int = 0
    """No end-of-sequence or stop before this many output tokens."""
    stop: tuple[str, ...] = ()
    """Stop strings: the text ends before the first of them that appears."""
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    logprobs: int | None = None
    """Log-probabilities of this many most likely tokens (and the chosen one) per output token."""
    prompt_logprobs: int | None = None
    """Like ``logprobs``, for each prompt token except the first."""
    logit_bias: dict[int, float] | None = None
    """Values added to the logits of these token ids; -inf is not allowed, -100 bans in practice."""
    skip_special_tokens: bool = True
    grammar: GrammarSpec | None = None
    """What the output must be, as a whole. Tokens that end the sequence and have no text (ends of
    sequence, special ``stop_token_ids``) are allowed exactly where the output is complete; where
    nothing can follow it ends, even before ``min_tokens`` and with ``ignore_eos``. Only
    ``max_tokens``, the context, and stops that are text end it before it is complete."""

    def __post_init__(self) -> None:
        if (
            (type(self.stop), type(self.stop_token_ids)) == (tuple, tuple)
            and self.logit_bias is None
            and not (self.stop or self.stop_token_ids)
            and _USUAL.issuperset(map(type, astuple(self)))
        ):
            return
        for name, value in (
            ("stop", _together(self.stop, str)),
            ("stop_token_ids", _together(self.stop_token_ids, int)),
            ("logit_bias", _plain_bias(self.logit_bias)),
        ):
            if value is not getattr(self, name):
                force_setattr(self, name, value)
        for name in _SCALARS:
            value = getattr(self, name)
            if type(value) not in _PLAIN:
                force_setattr(self, name, _plain(value))

    def validate(self, vocab_size: int | None = None) -> None:
        """Raise RequestError naming the first option that is out of range."""
        for name, allowed in RANGES.items():
            value = getattr(self, name)
            if name != "logit_bias" and (value is not None or name not in _MAY_BE_NONE):
                _check(name, value, allowed)
        for name in _FLAGS:
            if not isinstance(getattr(self, name), bool):
                raise RequestError(
                    f"{name} must be true or false, not {shown(getattr(self, name))}", name
                )
        if self.max_tokens is not None:
            _check("min_tokens", self.min_tokens, Range(0, self.max_tokens))
        for name, what in (("stop", "a text or a list of texts"), ("stop_token_ids", "token ids")):
            value = getattr(self, name)
            if not isinstance(value, tuple):
                raise RequestError(f"{name} must be {what}, not {shown(value)}", name)
            if len(value) > MAX_STOPS:
                raise RequestError(f"{name} may hold {MAX_STOPS}, not {len(value)}", name)
        if any(not isinstance(s, str) or not s for s in self.stop):
            raise RequestError("stop strings must be non-empty text", "stop")
        if any(len(s) > MAX_STOP_CHARS for s in self.stop):
            raise RequestError(
                f"a stop string may have {MAX_STOP_CHARS} characters, and one is longer", "stop"
            )
        if not isinstance(self.logit_bias, dict | None):
            raise RequestError(
                f"logit_bias must be a dict of token ids and numbers, not {shown(self.logit_bias)}",
                "logit_bias",
            )
        for token, bias in (self.logit_bias or {}).items():
            _check("logit_bias", bias, RANGES["logit_bias"])
            _check("logit_bias", token, Range(0))
        for token in self.stop_token_ids:
            _check("stop_token_ids", token, Range(0))
        if vocab_size is not None:
            check_token_ids(self.logit_bias or (), vocab_size, "logit_bias")
            check_token_ids(self.stop_token_ids, vocab_size, "stop_token_ids")
        if self.grammar is not None and not isinstance(self.grammar, GrammarSpec):
            raise RequestError(
                f"grammar must be a GrammarSpec, not {type(self.grammar).__name__}", "grammar"
            )

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0


_FLAGS = ("ignore_eos", "include_stop_str_in_output", "skip_special_tokens")
_SCALARS = (*(name for name in RANGES if name != "logit_bias"), *_FLAGS)
_MAY_BE_NONE = frozenset({"seed", "max_tokens", "logprobs", "prompt_logprobs"})
_PLAIN = frozenset({int, float, bool, type(None)})


_USUAL = _PLAIN | {tuple, GrammarSpec}


def _plain(value: Any) -> Any:
    """The Python number, bool or text that ``value`` is one of; itself if it is something else."""
    if type(value) in _PLAIN:
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        try:
            return float(value)
        except OverflowError:
            return math.inf
    if isinstance(value, str):
        return str(value)
    # NumPy's bool is no number; asked for by name, so that a client need not import NumPy.
    if type(value).__module__ == "numpy" and type(value).__name__ in ("bool", "bool_"):
        return bool(value)
    return value


def _together(value: Any, one: type[str] | type[int]) -> Any:
    """A tuple of what ``value`` lists; of ``value`` where it is ``one``; itself otherwise."""
    if type(value) is tuple and (not value or all(type(v) is one for v in value)):
        return value
    if value is None:
        return ()
    if isinstance(value, (list, tuple)):
        return tuple(map(_plain, value))
    if type(value).__name__ == "ndarray" and value.ndim == 1:
        return tuple(value.tolist())
    plain = _plain(value)
    return (plain,) if type(plain) is one else value


def _plain_bias(value: Any) -> Any:
    if not isinstance(value, Mapping) or (
        type(value) is dict and all(type(k) is int and type(v) in _PLAIN for k, v in value.items())
    ):
        return value
    return {_plain(token): _plain(bias) for token, bias in value.items()}


def _check(name: str, value: float, allowed: Range) -> None:
    if isinstance(allowed.low, int):
        _check_integer(name, value, allowed)
    else:
        _check_number(name, value, allowed)


def _check_number(name: str, value: float, allowed: Range) -> None:
    low, high, open_low = allowed
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not _finite(value):
        raise RequestError(f"{name} must be a finite number, not {shown(value)}", name)
    if value < low or (high is not None and value > high) or (open_low and value == low):
        assert high is not None  # every range of numbers has two ends
        bracket = "(" if open_low else "["
        raise RequestError(
            f"{name} must be in {bracket}{low:g}, {high:g}], not {shown(value)}", name
        )


def _finite(value: float) -> bool:
    """Whether a number is finite. Also takes integers that no float can hold, which math.isfinite()
    does not."""
    return isinstance(value, int) or math.isfinite(value)


def _check_integer(name: str, value: float, allowed: Range) -> None:
    low, high, _ = allowed
    if isinstance(value, bool) or not isinstance(value, int):
        raise RequestError(f"{name} must be an integer, not {shown(value)}", name)
    if value < low or (high is not None and value > high):
        if high == MAX_INT64:
            limit = f"be at least {low}" if value < low else "fit in 64 bits"
        else:
            limit = f"be at least {low}" if high is None else f"be from {low} to {high}"
        raise RequestError(f"{name} must {limit}, not {shown(value)}", name)
