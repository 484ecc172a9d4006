"""How speculation is asked for: ``--speculative METHOD[:key=value,...]``, or a dict."""

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
"""Longest draft. One of 16 tokens that are each accepted nine times in ten brings 8.3 a step, and
twice the length 9.7."""

MAX_TREE_TOKENS = 63
"""Most tokens of a draft tree, whose root is known (``draft_tree.MAX_ROWS``)."""

MAX_DEPTH = MAX_WIDTH = 10

_TYPICAL_THRESHOLD, _TYPICAL_ALPHA = 0.3, 0.09

_LEAST_SHARED, _MOST_SHARED = 1024, 65536
"""What is remembered is read anew when half of it is forgotten: at most 65 ms."""


class Method(msgspec.Struct, frozen=True, kw_only=True, tag_field="method"):
    """What every method has."""

    most_tokens: ClassVar[int] = MAX_TOKENS

    num_tokens: int = 5
    """Tokens that are drafted a step at most."""
    adaptive: bool = True
    """Choose fewer, or none, where measured acceptance and times say that it pays."""

    def validate(self) -> None:
        """Raise ConfigError naming the first option that is out of range."""
        _within("num_tokens", self.num_tokens, self.most_tokens)


class Ngram(Method, frozen=True, kw_only=True, tag="ngram"):
    """What followed the longest suffix of the text where it occurred before."""

    num_tokens: int = 8
    min_match: int = 3
    """Shortest suffix, in tokens, that is looked for."""
    shared_tokens: int = 0
    """Tokens of ended requests that are remembered, for suffixes that a request's own text has not;
    0: none."""

    def validate(self) -> None:
        super().validate()
        _at_least("min_match", self.min_match, 1)
        if self.shared_tokens and not _LEAST_SHARED <= self.shared_tokens <= _MOST_SHARED:
            raise ConfigError(
                f"speculative shared_tokens must be 0 or from {_LEAST_SHARED} to {_MOST_SHARED}, "
                f"not {self.shared_tokens}"
            )


class DraftModel(Method, frozen=True, kw_only=True, tag="draft"):
    """What a smaller model thinks likeliest."""

    model: str = ""
    """Its checkpoint folder or hub id, with the target's tokenizer; empty: the demo model's own."""


class QuantizedSelf(Method, frozen=True, kw_only=True, tag="self"):
    """What the target thinks likeliest when its weights are rounded to a few bits."""

    quantization: Literal["int4", "int8"] = "int4"


HeadsQuantization = Literal["auto", "none", "int8", "int4"]
"""auto: as the model that is drafted for, where its options fit."""


class Medusa(Method, frozen=True, kw_only=True, tag="medusa"):
    """What heads beside the model's own think likeliest at the positions after the next."""

    most_tokens: ClassVar[int] = MAX_TREE_TOKENS

    num_tokens: int = 8
    """Tokens of the tree that are verified a step at most."""
    model: str = ""
    """Folder or hub id of the heads; empty: the demo model's own."""
    quantization: HeadsQuantization = "auto"
    acceptance: Literal["exact", "typical"] = "exact"
    """typical also accepts, where a request samples, what the model finds plausible: outputs are
    then others than without speculation."""
    typical_threshold: float = _TYPICAL_THRESHOLD
    """Least probability of a token that is typical, where the model is sure of itself."""
    typical_alpha: float = _TYPICAL_ALPHA
    """Times exp(-entropy), the least probability where it is not."""

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
    """What one layer thinks likeliest that goes on from the model's hidden states."""

    most_tokens: ClassVar[int] = MAX_TREE_TOKENS

    num_tokens: int = 8
    """Tokens of the tree that are verified a step at most."""
    model: str = ""
    """Folder or hub id of the head, of EAGLE 1, 2 or 3; empty: the demo model's own."""
    quantization: HeadsQuantization = "auto"
    depth: int = 5
    """Tokens of the tree's longest path: steps of the head."""
    width: int = 4
    """Most tokens that are drafted on at each depth, and that follow one of them."""

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
    """``ngram`` or ``ngram:num_tokens=4,min_match=2``; raises ConfigError."""
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
    """``{"method": "ngram", "num_tokens": 4}``; raises ConfigError."""
    return _struct(dict(options), from_text=False)


def describe(config: Method) -> str:
    """As :func:`parse_speculative` reads it, with every option but texts that are empty."""
    values = ((name, getattr(config, name)) for name in config.__struct_fields__)
    options = (f"{n}={str(v).lower() if isinstance(v, bool) else v}" for n, v in values if v != "")
    return f"{_name(config)}:{','.join(options)}"


def _name(config: Method) -> str:
    return str(type(config).__struct_config__.tag)


def _struct(options: dict[str, Any], from_text: bool) -> SpeculativeConfig:
    method = options.pop("method", None)
    if not isinstance(method, str) or method not in _METHODS:
        near = get_close_matches(str(method), _METHODS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        known = ", ".join(_METHODS)
        raise ConfigError(f"there is no speculative method {method!r}{hint} There are: {known}")
    struct = _METHODS[method]
    hints = typing.get_type_hints(struct)
    for name, value in options.items():
        if name not in struct.__struct_fields__:
            near = get_close_matches(name, struct.__struct_fields__, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
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
    """``value`` as the option's type, of text if that is what it is written in."""
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
    if from_text and hint is int and value.isdecimal():
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
