"""Command-line options made from the option structs, so that each is declared in one place.

A struct field gives the option its name (``kv_cache_bytes``: ``--kv-cache-bytes``), type,
default, and by its description (``msgspec.Meta``) its help. Options that are not given
leave no trace in the namespace, so the struct's own defaults hold.
"""

from __future__ import annotations

import argparse
import math
import re
import types
import typing
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_origin

import msgspec

from penstock.cli.parser import UsageError
from penstock.config import EngineConfig
from penstock.errors import ConfigError, RequestError
from penstock.kv_disk_config import size_of
from penstock.profile import Profile
from penstock.sampling.params import SamplingParams
from penstock.speculative_config import SpeculativeConfig, parse_speculative

S = TypeVar("S", bound=msgspec.Struct)
Values = Mapping[str, object]

_COUNT = {"": 1, "k": 10**3, "m": 10**6, "K": 1 << 10, "M": 1 << 20}
_COUNTED = ("max_model_len", "max_input_len", "max_output_len", "max_num_batched_tokens")
_NOTHING: Values = types.MappingProxyType({})


def option_name(field: str) -> str:
    return "--" + field.replace("_", "-")


def _rare(struct: type[msgspec.Struct], *usual: str) -> frozenset[str]:
    return frozenset(option_name(f) for f in struct.__struct_fields__ if f not in usual)


RARE_ENGINE = _rare(
    EngineConfig,
    *("dtype", "quantization", "backend", "threads"),
    *("max_model_len", "kv_cache_bytes", "speculative", "served_model_name", "profile"),
)
"""The engine's options that ``--help`` leaves out."""
ADAPTERS = frozenset({"lora_modules", "max_loras", "max_lora_rank"})
"""The engine's options that are of use where requests name adapters."""
RARE_SAMPLING = _rare(SamplingParams, "n", "temperature", "top_p", "seed", "max_tokens", "stop")
"""Those of sampling."""


def add_engine_arguments(
    parser: argparse.ArgumentParser, skip: Collection[str] = (), model_help: str = ""
) -> None:
    """``MODEL`` and an option for every other field of EngineConfig that is not in ``skip``.

    ``model_help`` says what MODEL is, where that differs from the field's description.
    """
    parser.add_argument(
        "model",
        nargs="?",
        metavar="MODEL",
        help=_help(model_help or described(EngineConfig)["model"][1]),
    )
    group = parser.add_argument_group("engine options")
    _add_fields(group, EngineConfig, _NOTHING, {"model", *skip})


def engine_config(args: argparse.Namespace) -> EngineConfig:
    """The EngineConfig that the arguments of :func:`add_engine_arguments` spell."""
    if args.model == "":
        raise UsageError("argument MODEL: it is empty; name a model, or leave it out for the demo")
    values = values_of(EngineConfig, args)
    profile = values.get("profile")
    if isinstance(profile, Profile):
        values = profile.over(values)
    config = _made(EngineConfig, values)
    return config if args.model else msgspec.structs.replace(config, model=EngineConfig().model)


def engine_words(config: EngineConfig) -> list[str]:
    """The words of a command line that spell ``config``, without speculation. Options of a profile
    are among them, so it is not named itself."""
    usual, kinds = EngineConfig(), described(EngineConfig)
    words = [config.model] if config.model else []
    for name in EngineConfig.__struct_fields__:
        value = getattr(config, name)
        if name in ("model", "speculative", "profile") or value == getattr(usual, name):
            continue
        option = option_name(name)
        if kinds[name][0] in (bool, bool | None):
            words.append(option if value else f"--no-{option[2:]}")
        else:
            for each in value if isinstance(value, tuple) else (value,):
                words += [option, str(each)]
    return words


def add_sampling_arguments(
    parser: argparse.ArgumentParser, defaults: Values = _NOTHING, skip: Collection[str] = ()
) -> None:
    """An option for every field of SamplingParams but ``grammar`` and ``beam_search``, whose
    options are in ``grammar_options`` and ``beam_options``; ``defaults`` replaces the struct's
    own."""
    group = parser.add_argument_group("sampling options")
    _add_fields(group, SamplingParams, defaults, {"grammar", "beam_search", *skip})


def sampling_params(args: argparse.Namespace) -> SamplingParams:
    """Validated SamplingParams from the arguments of :func:`add_sampling_arguments`.

    Raises UsageError naming the option that is out of range.
    """
    return checked(_struct(SamplingParams, args))


def checked(params: SamplingParams) -> SamplingParams:
    """``params``, if they are valid. Raises UsageError naming the option that is not."""
    try:
        params.validate()
    except RequestError as error:
        raise UsageError(f"argument {option_name(error.param or '')}: {error}") from None
    return params


def parse_size(text: str) -> int:
    """Bytes of ``2GiB`` (binary), ``2GB`` or ``2G`` (decimal), or ``2147483648``."""
    size = size_of(text)
    if size is None:
        raise argparse.ArgumentTypeError(f"not a size: {text!r} (write 2GiB, 500MB or 1000000)")
    return size


def parse_count(text: str) -> int:
    """A number of tokens, as vLLM reads it: ``8192``, ``8k`` (8,000), ``8K`` (8,192), ``1.5M``."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kKmM]?)", text.strip())
    count = 0.5 if match is None else float(match[1]) * _COUNT[match[2]]
    if not count.is_integer():
        raise argparse.ArgumentTypeError(
            f"not a number of tokens: {text!r} (write 8192, 8k for 8,000 or 8K for 8,192)"
        )
    return int(count)


def positive_int(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"not a positive integer: {text!r}")
    return int(text)


def whole_number(text: str) -> int:
    """A number from 0 on."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"not a whole number from 0: {text!r}")
    return int(text)


def from_zero(text: str) -> float:
    """A number from 0 on, which need not be whole."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"not a number from 0 on: {text!r}")
    return value


def parse_logit_bias(text: str) -> tuple[int, float]:
    """``42:-5`` is token 42 with bias -5."""
    token, _, bias = text.partition(":")
    try:
        return int(token), float(bias)
    except ValueError:
        raise argparse.ArgumentTypeError(f"not TOKEN_ID:BIAS: {text!r} (like 42:-5)") from None


def described(struct: type[msgspec.Struct]) -> dict[str, tuple[Any, str]]:
    """The type of each field, and its description (``msgspec.Meta``); empty where it has none."""
    found: dict[str, tuple[Any, str]] = {}
    for name, hint in typing.get_type_hints(struct, include_extras=True).items():
        if name not in struct.__struct_fields__:
            continue
        kind, *notes = typing.get_args(hint) if get_origin(hint) is Annotated else (hint,)
        texts = (each.description for each in notes if isinstance(each, msgspec.Meta))
        found[name] = kind, next(filter(None, texts), "")
    return found


def _add_fields(
    group: argparse._ArgumentGroup,
    struct: type[msgspec.Struct],
    defaults: Values,
    skip: Collection[str],
) -> None:
    options = described(struct)
    for field in msgspec.structs.fields(struct):
        if field.name in skip:
            continue
        default = defaults.get(field.name, field.default)
        kind, description = options[field.name]
        notes = [description]
        if default not in (None, (), ""):
            notes.append(f"(default: {default})")
        group.add_argument(
            option_name(field.name),
            default=defaults.get(field.name, argparse.SUPPRESS),
            help=_help(" ".join(note for note in notes if note)),
            **_argument(field.name, kind),
        )


def _argument(name: str, hint: Any) -> dict[str, Any]:
    """Keyword arguments of ``add_argument`` that read a value of type ``hint``."""
    kinds = [kind for kind in typing.get_args(hint) if kind is not types.NoneType]
    optional = len(kinds) < len(typing.get_args(hint))
    kind = kinds[0] if optional and len(kinds) == 1 else hint
    origin = typing.get_origin(kind)
    if name == "speculative":
        return {"type": speculative_method, "metavar": "METHOD[:KEY=VALUE,...]"}
    if name == "profile":
        return {"type": profile_file, "metavar": "FILE"}
    if name == "kv_disk":
        return {"type": str, "metavar": "DIR:SIZE"}
    if set(kinds) == {int, str}:
        return {"type": _or_none(_int_or_text), "metavar": "N|LIST"}
    if kind is bool:
        return {"action": argparse.BooleanOptionalAction}
    if origin is typing.Literal:
        return {"choices": typing.get_args(kind)}
    if origin is tuple:
        element = typing.get_args(kind)[0]
        return {"action": "append", "type": element, "metavar": _metavar(name, element)}
    if origin is dict:
        return {"action": "append", "type": parse_logit_bias, "metavar": "TOKEN_ID:BIAS"}
    read: Callable[[str], object] = kind
    if kind is int and name.endswith("_bytes"):
        read = parse_size
    elif name in _COUNTED:
        read = parse_count
    if optional and kind is not str:
        read = _or_none(read)
    return {"type": read, "metavar": _metavar(name, kind)}


def speculative_method(text: str) -> SpeculativeConfig:
    """``METHOD[:key=value,...]``"""
    try:
        return parse_speculative(text)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def profile_file(text: str) -> Profile:
    """The profile that a file holds."""
    try:
        return Profile.read(Path(text))
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{text}: {error.strerror}") from None
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _int_or_text(text: str) -> int | str:
    return int(text) if re.fullmatch(r"-?[0-9]{1,18}", text) else text


def _or_none(read: Callable[[str], object]) -> Callable[[str], object]:
    def parse(text: str) -> object:
        return None if text == "none" else read(text)

    parse.__name__ = getattr(read, "__name__", "value")  # argparse says "invalid int value"
    return parse


def _metavar(name: str, kind: type) -> str:
    if name.endswith("_bytes"):
        return "SIZE"
    return {int: "N", float: "X", str: "TEXT"}[kind]


def _help(text: str) -> str:
    return text.replace("%", "%%")  # argparse formats help with %


def _struct(struct: type[S], args: argparse.Namespace) -> S:
    return _made(struct, values_of(struct, args))


def _made(struct: type[S], values: Mapping[str, object]) -> S:
    return struct(**values)


def values_of(struct: type[msgspec.Struct], args: argparse.Namespace) -> dict[str, object]:
    """What was given of the fields of ``struct``."""
    values: dict[str, object] = {}
    for name in struct.__struct_fields__:
        if hasattr(args, name) and name != "grammar":
            value = getattr(args, name)
            if isinstance(value, list):
                value = dict(value) if name == "logit_bias" else tuple(value)
            values[name] = value
    return values
