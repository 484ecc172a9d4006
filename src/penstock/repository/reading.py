"""Reads a catalogue: of a TOML file, or of a folder of models."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from penstock.config import EngineConfig
from penstock.errors import ConfigError
from penstock.gguf.names import SUFFIX
from penstock.repository.catalogue import Catalogue, ModelEntry

Options = Mapping[str, object]
SizeParser = Callable[[str], int]
"""Reads a size such as 2GB. Raises ConfigError."""

_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)(s|m|h)?")
_SECONDS: Final = {None: 1, "s": 1, "m": 60, "h": 3600}
_EVER_S: Final = 1e9
"""Longer is for ever: integers may be too large for a float, and sums of times for a clock."""
_VERSION: Final = re.compile(r"[A-Za-z0-9][\w.-]{0,63}")
_OWN: Final = frozenset({"model", "revision", "served_model_name", "profile", "speculative"})
"""Fields of EngineConfig that are no options of an entry."""


class _Model(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """One ``[[models]]`` of the file."""

    name: str
    model: str | None = None
    revision: str | None = None
    aliases: list[str] = []
    versions: dict[str, str] = {}
    default_version: str | None = None
    adapters: dict[str, str] = {}
    memory: int | str | None = None
    load: Literal["start", "demand"] = "demand"
    keep_alive: int | float | str | None = None
    options: dict[str, Any] = {}


class _File(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    models: list[_Model] = []
    memory: int | str | None = None
    default: str | None = None


def read_catalogue(path: Path, options: Options, parse_size: SizeParser) -> Catalogue:
    """Read a TOML file or a folder of models. ``options`` are fields of EngineConfig that hold for
    all models whose entries say nothing else. Raises ConfigError naming what is wrong."""
    if path.is_dir():
        return _folder(path, options)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--models {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"--models {path}: it is not UTF-8") from None
    try:
        file = msgspec.convert(tomllib.loads(text), _File)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is no TOML: {error}") from None
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: {error}") from None
    reader = _Reader(path, options, parse_size)
    return Catalogue(
        entries=tuple(entry for model in file.models for entry in reader.entries(model)),
        default=file.default,
        memory_bytes=reader.size(file.memory, "memory"),
        origin=str(path),
    )


def seconds(value: float | str, where: str) -> float | None:
    """Seconds of ``5m``, ``1.5h``, ``30s`` or a number; None, for ever, of a negative one. Raises
    ConfigError."""
    if isinstance(value, str):
        if value.startswith("-"):
            return None
        match = _DURATION.fullmatch(value)
        found = None if match is None else float(match[1]) * _SECONDS[match[2]]
    else:
        found = value
    if found is None or found != found:  # what is no number is not itself
        raise ConfigError(
            f"{where}: not a time: {value!r:.80} (write 30s, 5m or 1h; -1 is for ever)"
        )
    return None if found < 0 or found > _EVER_S else float(found)


class _Reader:
    """Makes entries of what one file says."""

    def __init__(self, path: Path, options: Options, parse_size: SizeParser) -> None:
        self._path = path
        self._options = options
        self._parse_size = parse_size

    def entries(self, model: _Model) -> list[ModelEntry]:
        """Those of one model, one for each of its versions."""
        where = f"{self._path}: the model {model.name!r}"
        _check_name(model.name, where)
        if (not model.model) == (not model.versions) or "" in model.versions.values():
            raise ConfigError(
                f"{where} needs either model (a folder, GGUF file or hub id) or versions"
            )
        if model.default_version is not None and model.default_version not in model.versions:
            raise ConfigError(
                f"{where}: default_version {model.default_version!r} is none of its versions"
            )
        if model.adapters and model.versions:
            raise ConfigError(
                f"{where} has versions, of which each has adapters of its own; give it an entry of "
                "its own with model and adapters"
            )
        for name in model.adapters:
            _check_name(name, where)
            if "=" in name:
                raise ConfigError(f"{where}: {name!r} cannot be the name of an adapter, for its =")
        if model.model:
            return [self._entry(model, model.name, model.model, tuple(model.aliases), None, where)]
        return [
            self._entry(model, f"{model.name}:{version}", source, names, version, where)
            for version, source, names in _versions(model, where)
        ]

    def size(self, value: int | str | None, where: str) -> int | None:
        if value is None or isinstance(value, int):
            if value is not None and value <= 0:
                raise ConfigError(f"{self._path}: {where} must be more than 0")
            return value
        try:
            return self._parse_size(value)
        except ConfigError as error:
            raise ConfigError(f"{self._path}: {where}: {error}") from None

    def _entry(
        self,
        model: _Model,
        name: str,
        source: str,
        aliases: tuple[str, ...],
        version: str | None,
        where: str,
    ) -> ModelEntry:
        keep = model.keep_alive
        return ModelEntry(
            config=self._config(model, name, source, where),
            aliases=aliases,
            version=version,
            memory_bytes=self.size(model.memory, f"memory of {model.name!r}"),
            at_start=model.load == "start",
            keep_alive_s=None if keep is None else seconds(keep, f"{where}: keep_alive"),
        )

    def _config(self, model: _Model, name: str, source: str, where: str) -> EngineConfig:
        if "lora_modules" in model.options:
            raise ConfigError(f"{where}: write adapters = {{ NAME = PATH }} for lora_modules")
        for option, value in model.options.items():
            if option in _OWN or option not in EngineConfig.__struct_fields__:
                raise ConfigError(f"{where}: there is no option {option!r}")
            if option.endswith("_bytes") and isinstance(value, str):
                model.options[option] = self.size(value, f"{option} of {model.name!r}")
        config = {
            **self._options,
            **model.options,
            "model": self._beside(source),
            "revision": model.revision,
            "served_model_name": name,
            "lora_modules": [f"{each}={self._beside(at)}" for each, at in model.adapters.items()],
        }
        return _made(config, where)

    def _beside(self, path: str) -> str:
        """A path as it is seen from the file; a hub id, and what is not there, as they are."""
        beside = self._path.parent / Path(path).expanduser()
        return str(beside) if beside.exists() else path


def _versions(model: _Model, where: str) -> list[tuple[str, str, tuple[str, ...]]]:
    """Each version with its source and its names beside ``MODEL:VERSION``: the default one has the
    model's and its aliases."""
    for version in model.versions:
        if not _VERSION.fullmatch(version):
            raise ConfigError(f"{where}: {version!r} cannot be the name of a version")
    usual = model.default_version or max(model.versions, key=_age)
    return [
        (version, source, (model.name, *model.aliases) if version == usual else ())
        for version, source in model.versions.items()
    ]


def _age(version: str) -> tuple[int, str]:
    """What the newest version has most of: numbers count as numbers."""
    return (int(version), "") if version.isdecimal() else (-1, version)


def _folder(path: Path, options: Options) -> Catalogue:
    """Each folder with a config.json and each GGUF file is a model; folders named by numbers are
    versions of the model that their folder is, as in Triton's repositories."""
    entries: list[ModelEntry] = []
    for each in sorted(path.iterdir()):
        if each.name.startswith("."):
            continue
        if each.is_file() and each.suffix == SUFFIX:
            entries.append(_found(each.stem, each, (), None, options))
        elif _is_model(each):
            entries.append(_found(each.name, each, (), None, options))
        elif each.is_dir():
            versions = sorted(
                (sub for sub in each.iterdir() if sub.name.isdecimal() and _is_model(sub)),
                key=lambda sub: int(sub.name),
            )
            entries += [
                _found(
                    f"{each.name}:{sub.name}",
                    sub,
                    (each.name,) if sub == versions[-1] else (),
                    sub.name,
                    options,
                )
                for sub in versions
            ]
    if not entries:
        raise ConfigError(
            f"--models {path}: no folder there holds a config.json or a GGUF file, and there is no "
            "GGUF file"
        )
    return Catalogue(tuple(entries), origin=str(path))


def _found(
    name: str, path: Path, aliases: tuple[str, ...], version: str | None, options: Options
) -> ModelEntry:
    where = f"--models: {path}"
    _check_name(name, where)
    config = {**options, "model": str(path), "served_model_name": name}
    return ModelEntry(_made(config, where), aliases, version)


def _is_model(path: Path) -> bool:
    return path.is_dir() and ((path / "config.json").is_file() or any(path.glob(f"*{SUFFIX}")))


def _check_name(name: str, where: str) -> None:
    if not name or name != name.strip() or not name.isprintable() or len(name) > 256:
        raise ConfigError(f"{where}: {name!r} cannot be a name: give 1 to 256 printable characters")


def _made(config: Mapping[str, object], where: str) -> EngineConfig:
    try:
        return msgspec.convert(config, EngineConfig)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: {error}") from None
