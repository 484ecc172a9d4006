"""How speculation is asked for: ``--speculative METHOD[:key=value,...]``, or a dict."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, Literal

import msgspec

from penstock.errors import ConfigError

MAX_TOKENS = 16
"""Longest draft. One of 16 tokens that are each accepted nine times in ten brings 8.3 a step, and
twice the length 9.7."""

_LEAST_SHARED, _MOST_SHARED = 1024, 65536
"""What is remembered is read anew when half of it is forgotten: at most 65 ms."""


class Method(msgspec.Struct, frozen=True, kw_only=True, tag_field="method"):
    """What every method has."""

    num_tokens: int = 5
    """Tokens that are drafted a step at most."""
    adaptive: bool = True
    """Choose fewer, or none, where measured acceptance and times say that it pays."""

    def validate(self) -> None:
        """Raise ConfigError naming the first option that is out of range."""
        _at_least("num_tokens", self.num_tokens, 1)
        if self.num_tokens > MAX_TOKENS:
            raise ConfigError(
                f"speculative num_tokens must be at most {MAX_TOKENS}, not {self.num_tokens}"
            )


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


SpeculativeConfig = Ngram | DraftModel | QuantizedSelf
_METHODS: dict[str, type[Method]] = {
    "ngram": Ngram,
    "draft": DraftModel,
    "self": QuantizedSelf,
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
    """As :func:`parse_speculative` reads it, with every option."""
    values = ((name, getattr(config, name)) for name in config.__struct_fields__)
    options = (f"{n}={str(v).lower() if isinstance(v, bool) else v}" for n, v in values)
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
    if not from_text and type(value) is hint:
        return value
    word = {int: "a whole number", bool: "true or false", str: "text"}[hint]
    raise ConfigError(f"speculative {name} must be {word}, not {value!r}")


def _at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise ConfigError(f"speculative {name} must be at least {least}, not {value}")
