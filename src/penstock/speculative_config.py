"""The options of speculation, written ``--speculative METHOD[:key=value,...]`` or as a dict."""

from __future__ import annotations

import contextlib
import types
import typing
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, ClassVar, Literal

import msgspec

from penstock.errors import ConfigError

MAX_TOKENS = 16
"""Largest ``num_tokens`` of a chain. At an acceptance of 0.9, 16 tokens give 8.3 tokens a step and
32 would give only 9.7."""

MAX_TREE_TOKENS = 63
"""Largest ``num_tokens`` of a tree: ``draft_tree.MAX_ROWS`` less the row of its root."""

MAX_DEPTH = MAX_WIDTH = 10

_TYPICAL_THRESHOLD, _TYPICAL_ALPHA = 0.3, 0.09

_LEAST_SHARED, _MOST_SHARED = 1024, 65536
"""Limits of ``shared_tokens``. When the memory is full its older half is dropped and the index
rebuilt, which takes at most 65 ms."""


class Method(msgspec.Struct, frozen=True, kw_only=True, tag_field="method"):
    """The options that all methods share."""

    most_tokens: ClassVar[int] = MAX_TOKENS

    num_tokens: int = 5
    """Maximum number of tokens drafted for a sequence in a step."""
    adaptive: bool = True
    """Whether to draft fewer tokens, or none, where measured acceptance and times say so."""

    @property
    def drafts_trees(self) -> bool:
        """Whether a draft may have several candidates for one position."""
        return False

    def validate(self) -> None:
        """Raise ConfigError naming the first option that is out of range."""
        _within("num_tokens", self.num_tokens, self.most_tokens)


class Ngram(Method, frozen=True, kw_only=True, tag="ngram"):
    """Prompt lookup: draft what followed an earlier occurrence of the text's longest suffix."""

    num_tokens: int = 8
    min_match: int = 3
    """Length in tokens of the shortest suffix that counts as a match."""
    shared_tokens: int = 0
    """How many tokens of finished requests are searched where a request's own text has no match; 0
    disables this."""

    def validate(self) -> None:
        super().validate()
        _at_least("min_match", self.min_match, 1)
        if self.shared_tokens and not _LEAST_SHARED <= self.shared_tokens <= _MOST_SHARED:
            raise ConfigError(
                f"speculative shared_tokens must be 0 or from {_LEAST_SHARED} to {_MOST_SHARED}, "
                f"not {self.shared_tokens}"
            )


class DraftModel(Method, frozen=True, kw_only=True, tag="draft"):
    """Draft with a smaller model's greedy continuation."""

    model: str = ""
    """The draft model's folder or hub id. It must have the target's tokenizer. Empty means the one
    that is included for the demo model."""


class QuantizedSelf(Method, frozen=True, kw_only=True, tag="self"):
    """Self-speculation: draft with the target model itself, quantized to fewer bits."""

    quantization: Literal["int4", "int8"] = "int4"


HeadsQuantization = Literal["auto", "none", "int8", "int4"]
"""Quantization of heads. ``auto`` is the target's where its options fit the heads, and else int8,
which halves the time of drafting and was accepted as often."""


class Medusa(Method, frozen=True, kw_only=True, tag="medusa"):
    """Draft with Medusa heads, which predict the tokens after the next from the hidden state."""

    most_tokens: ClassVar[int] = MAX_TREE_TOKENS

    num_tokens: int = 8
    """Maximum number of tree nodes verified for a sequence in a step."""
    model: str = ""
    """Folder or hub id of the heads. Empty means those included for the demo model."""
    quantization: HeadsQuantization = "auto"
    acceptance: Literal["exact", "typical"] = "exact"
    """``exact`` leaves outputs unchanged. ``typical`` also accepts plausible tokens for requests
    that sample, which changes outputs."""
    typical_threshold: float = _TYPICAL_THRESHOLD
    """Minimum probability of a typical token where the model's entropy is low."""
    typical_alpha: float = _TYPICAL_ALPHA
    """Factor of exp(-entropy), the minimum probability where the entropy is high."""

    @property
    def drafts_trees(self) -> bool:
        return self.num_tokens > 1

    def validate(self) -> None:
        super().validate()
        defaults = {"typical_threshold": _TYPICAL_THRESHOLD, "typical_alpha": _TYPICAL_ALPHA}
        for name, default in defaults.items():
            if not 0.0 < getattr(self, name) <= 1.0:
                raise ConfigError(
                    f"speculative {name} must be greater than 0 and at most 1, "
                    f"not {getattr(self, name)}"
                )
            if self.acceptance == "exact" and getattr(self, name) != default:
                raise ConfigError(
                    f"speculative {name} has no effect with acceptance exact; set acceptance to "
                    "typical, or leave it out"
                )


class Eagle(Method, frozen=True, kw_only=True, tag="eagle"):
    """Draft with an EAGLE head, one layer that continues from the model's hidden states."""

    most_tokens: ClassVar[int] = MAX_TREE_TOKENS

    num_tokens: int = 5
    """Maximum number of tokens verified for a sequence in a step."""
    model: str = ""
    """Folder or hub id of an EAGLE 1, 2 or 3 head. Empty means the one for the demo model."""
    quantization: HeadsQuantization = "auto"
    depth: int = 5
    """Length of the longest path, which is the number of steps of the head."""
    width: int = 1
    """Nodes expanded at each depth, and children of each (EAGLE-2's top k); 1 drafts a chain."""

    @property
    def drafts_trees(self) -> bool:
        return self.width > 1 and self.num_tokens > 1

    def validate(self) -> None:
        super().validate()
        _within("depth", self.depth, MAX_DEPTH)
        _within("width", self.width, MAX_WIDTH)


SpeculativeConfig = Ngram | DraftModel | QuantizedSelf | Medusa | Eagle
_METHODS: dict[str, type[Method]] = {
    "ngram": Ngram,
    "draft": DraftModel,
    "self": QuantizedSelf,
    "medusa": Medusa,
    "eagle": Eagle,
}


def parse_speculative(text: str) -> SpeculativeConfig:
    """Parse ``ngram`` or ``ngram:num_tokens=4,min_match=2``; raise ConfigError if it is invalid."""
    method, colon, listed = text.partition(":")
    options: dict[str, Any] = {"method": method}
    for item in listed.split(",") if colon else ():
        name, equals, value = item.partition("=")
        if not equals or not name or not value:
            raise ConfigError(f"speculative options are written key=value, not {item!r}")
        if name in options:
            raise ConfigError(f"the speculative option {name!r} is given twice")
        options[name] = value
    return _struct(options, from_text=True)


def speculative_config(options: Mapping[str, Any]) -> SpeculativeConfig:
    """Read ``{"method": "ngram", "num_tokens": 4}``; raise ConfigError if it is invalid."""
    return _struct(dict(options), from_text=False)


def describe(config: Method) -> str:
    """Write all options, except empty texts, in the form that :func:`parse_speculative` reads."""
    values = ((name, getattr(config, name)) for name in config.__struct_fields__)
    options = (f"{n}={str(v).lower() if isinstance(v, bool) else v}" for n, v in values if v != "")
    return f"{_name(config)}:{','.join(options)}"


def _name(config: Method) -> str:
    return str(type(config).__struct_config__.tag)


def _struct(options: dict[str, Any], from_text: bool) -> SpeculativeConfig:
    method = options.pop("method", None)
    if not isinstance(method, str) or method not in _METHODS:
        near = get_close_matches(str(method), _METHODS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        known = ", ".join(_METHODS)
        raise ConfigError(f"there is no speculative method {method!r}{hint} There are: {known}")
    struct = _METHODS[method]
    hints = typing.get_type_hints(struct)
    for name, value in options.items():
        if name not in struct.__struct_fields__:
            near = get_close_matches(name, struct.__struct_fields__, n=1)
            known = ", ".join(struct.__struct_fields__)
            hint = f"; did you mean {near[0]!r}?" if near else f"; there are {known}"
            raise ConfigError(f"speculative {method} has no option {name!r}{hint}")
        options[name] = _value(name, value, hints[name], from_text)
    missing = [
        field.name
        for field in msgspec.structs.fields(struct)
        if field.required and field.name not in options
    ]
    if missing:
        raise ConfigError(f"speculative {method} needs the option {missing[0]!r}")
    config = struct(**options)
    config.validate()
    assert isinstance(config, SpeculativeConfig)
    return config


def _value(name: str, value: Any, hint: Any, from_text: bool) -> Any:
    """Convert ``value`` to the option's type; with ``from_text``, parse it."""
    if isinstance(hint, types.UnionType):  # X | None
        hint = next(kind for kind in typing.get_args(hint) if kind is not types.NoneType)
    if typing.get_origin(hint) is Literal:
        if value in typing.get_args(hint):
            return value
        listed = ", ".join(typing.get_args(hint))
        raise ConfigError(f"speculative {name} must be one of {listed}, not {value!r}")
    if hint is str and isinstance(value, str):
        return value
    if from_text and hint is bool and value in ("true", "false"):
        return value == "true"
    if from_text and hint is int and value.removeprefix("-").isdecimal():
        return int(value)
    if hint is float and (from_text or type(value) in (int, float)):
        with contextlib.suppress(ValueError):
            return float(value)  # what is not finite is out of every range
    if not from_text and type(value) is hint:
        return value
    word = {int: "a whole number", bool: "true or false", str: "text", float: "a number"}[hint]
    raise ConfigError(f"speculative {name} must be {word}, not {value!r}")


def _within(name: str, value: int, most: int) -> None:
    _at_least(name, value, 1)
    if value > most:
        raise ConfigError(f"speculative {name} must be at most {most}, not {value}")


def _at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise ConfigError(f"speculative {name} must be at least {least}, not {value}")
