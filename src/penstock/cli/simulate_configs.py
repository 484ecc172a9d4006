"""The configurations that ``penstock simulate`` is given: texts and TOML files of options."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.cli.options import add_engine_arguments, described, engine_config, option_name
from penstock.cli.parser import Parser, UsageError, suggestion
from penstock.config import EngineConfig
from penstock.errors import ConfigError
from penstock.simulate.routing import POLICIES

if TYPE_CHECKING:
    from penstock.simulate.configuration import Configuration
    from penstock.sizing.catalogue import Catalogue

_COUNTS: Final = ("replicas", "max_waiting", "prefill")
_OWN: Final = (*_COUNTS, "routing", "network")
"""Options of a configuration that are none of the engine's."""
_SHORT: Final = {"tp": "tensor_parallel", "pp": "pipeline_parallel"}
"""Short names of the engine's options."""
_FIXED: Final = ("model", "revision")
"""Options of the engine that are the same for all configurations: those of the command."""
DEFAULT: Final = "default"


def read_configs(
    texts: Sequence[str],
    model: str,
    ignore: Sequence[str] = (),
    catalogue: Catalogue | None = None,
) -> list[Configuration]:
    """The configurations of the command line, each with a name of its own.

    ``NAME:key=value,...``, ``key=value,...``, ``default``, or the path of a TOML file, whose keys
    are the options of one configuration, or whose tables are one each. ``ignore``: fields of the
    model's config.json that are accepted unknown. ``catalogue``: where networks are from, by
    default our own. Raises ConfigError, and OSError of a file.
    """
    found: list[Configuration] = []
    base = [word for each in ignore for word in ("--ignore-config-field", each)]
    if model:
        base.insert(0, model)
    for text in texts or (DEFAULT,):
        if text.endswith(".toml"):
            found += [_asked(*each, base, catalogue) for each in _of_file(Path(text))]
        else:
            found.append(_asked(*_parse(text), base, catalogue))
    names = Counter(each.name for each in found)
    twice = next((name for name, count in names.items() if count > 1), None)
    if twice is not None:
        raise UsageError(f"two configurations are called {twice!r}; name them: NAME:key=value,...")
    return found


def _parse(text: str) -> tuple[str, dict[str, str]]:
    head, colon, rest = text.partition(":")
    if not colon or "=" in head:  # a value may have a colon
        head, rest = "", text
    if not head and rest == DEFAULT:
        return DEFAULT, {}
    options: dict[str, str] = {}
    for part in filter(None, rest.split(",")):
        key, equals, value = part.partition("=")
        if not equals or not value:
            raise UsageError(
                f"argument CONFIG: {part!r} of {text!r} is no key=value; write "
                "NAME:max_num_seqs=64,kv_cache_dtype=int8"
            )
        key = key.strip().replace("-", "_")
        if key in options:
            raise UsageError(f"argument CONFIG: {text!r} names {key} twice")
        options[key] = value.strip()
    return head or text, options


def _of_file(path: Path) -> list[tuple[str, dict[str, str]]]:
    with path.open("rb") as file:
        try:
            read = tomllib.load(file)
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path} is no TOML file: {error}") from None
    tables = {name: value for name, value in read.items() if isinstance(value, dict)}
    if tables and len(tables) < len(read):
        raise ConfigError(
            f"{path} has tables and other keys; it holds the options of one configuration, or a "
            "table for each"
        )
    made = tables or {path.stem: read}
    return [(name, _texts(path, value)) for name, value in made.items()]


def _texts(path: Path, options: Mapping[str, Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    for key, value in options.items():
        if isinstance(value, dict | list):
            raise ConfigError(f"{path}: {key} must be a number, a text, true or false")
        found[key.replace("-", "_")] = str(value).lower() if isinstance(value, bool) else str(value)
    return found


def _asked(
    name: str, options: Mapping[str, str], base: Sequence[str], catalogue: Catalogue | None
) -> Configuration:
    from penstock.frontend.open_sequences import MAX_WAITING
    from penstock.simulate.configuration import Configuration
    from penstock.sizing.catalogue import Catalogue

    own = {key: options[key] for key in _OWN if key in options}
    engine: dict[str, str] = {}
    for key, value in options.items():
        if key not in own:
            if key in _SHORT and _SHORT[key] in options:
                raise UsageError(f"{name}: {_SHORT[key]} and {key} are one option; leave one out")
            engine[_SHORT.get(key, key)] = value
    network = None
    if "network" in own:
        network = (catalogue or Catalogue.load()).find_network(own["network"])
    counts = {key: _count(name, key, value) for key, value in own.items() if key in _COUNTS}
    routing = own.get("routing", "round-robin")
    if routing not in POLICIES:
        raise UsageError(f"{name}: routing is one of {', '.join(POLICIES)}, not {routing!r}")
    asked = _engine(name, engine, base)
    profiles = None if asked.profile is None else asked.profile.max_waiting
    return Configuration(
        name,
        asked,
        replicas=counts.get("replicas", 1),
        routing=routing,
        max_waiting=counts.get("max_waiting", MAX_WAITING if profiles is None else profiles),
        prefill=counts.get("prefill", 0),
        network=network,
        options=dict(options),
    )


def _count(name: str, key: str, value: str) -> int:
    least = 1 if key == "replicas" else 0
    if not value.isdecimal() or int(value) < least:
        raise UsageError(f"{name}: {key} must be a whole number from {least} on, not {value!r}")
    return int(value)


def _engine(name: str, options: Mapping[str, str], base: Sequence[str]) -> EngineConfig:
    """The engine's options, read as its command line is; ``base`` are words before them."""
    kinds = described(EngineConfig)
    argv = list(base)
    for key, value in options.items():
        if key not in kinds or key in _FIXED:
            known = [*_OWN, *_SHORT, *(each for each in kinds if each not in _FIXED)]
            hint = suggestion(key, known) or f"there are {', '.join(_OWN)} and the engine's options"
            raise UsageError(f"{name}: there is no option {key!r} of a configuration; {hint}")
        option = option_name(key)
        if kinds[key][0] in (bool, bool | None):
            if value not in ("true", "false"):
                raise UsageError(f"{name}: {key} must be true or false, not {value!r}")
            argv.append(option if value == "true" else f"--no-{option[2:]}")
        else:
            argv += [option, value]
    parser = Parser("penstock simulate", "")
    add_engine_arguments(parser)
    try:
        return engine_config(parser.parse(argv))
    except UsageError as error:
        raise UsageError(f"{name}: {str(error).partition('; see ')[0]}") from None
