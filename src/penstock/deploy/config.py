"""What is deployed: tables of TOML, or the same as the arguments of an application of Ray Serve."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Self

import msgspec

from penstock.deploy.tables import (
    MEMORY,
    MOST_MEMORY,
    Autoscaling,
    Kubernetes,
    Options,
    Replicas,
    Routing,
)
from penstock.deploy.words import SetElsewhereError, serve_words
from penstock.errors import ConfigError
from penstock.routing.policies import POLICIES

_WORDS: Final = {
    "`object`": "a table",
    "`array`": "a list",
    "`str`": "a text",
    "`int`": "a whole number",
    "`float`": "a number",
    "`bool`": "true or false",
    " | null": "",
}
_NAME: Final = re.compile(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?")
"""Names of services begin with a letter, and KubeRay makes longer ones of it."""


_TABLES: Final[Mapping[str, type[msgspec.Struct]]] = {
    "replicas": Replicas,
    "autoscaling": Autoscaling,
    "routing": Routing,
    "kubernetes": Kubernetes,
}


class DeployConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A deployment. Raises nothing: :meth:`of` and :meth:`read` check values."""

    name: str = "penstock"
    model: str | None = None
    """As MODEL of ``penstock serve``; None is the demo model."""
    serve: Options = {}
    """Options of ``penstock serve``."""
    revision: str = ""
    """Any text: another one replaces all replicas, as files that have changed in their place may
    ask for."""
    replicas: Replicas = Replicas()
    autoscaling: Autoscaling = Autoscaling()
    routing: Routing = Routing()
    kubernetes: Kubernetes = Kubernetes()

    @classmethod
    def read(cls, path: Path) -> Self:
        """What a file says. Raises ConfigError that names it, the key and the fix, and OSError."""
        try:
            tables = tomllib.loads(path.read_text("utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path} is no TOML file: {error}") from None
        try:
            return cls.of(tables)
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from None

    @classmethod
    def of(cls, tables: Mapping[str, Any]) -> Self:
        """What tables say; dashes in names are underscores. Raises ConfigError that names the key
        and the fix."""
        _check_values("", tables)
        named = {_under(key): value for key, value in tables.items()}
        for table in _TABLES:
            if isinstance(named.get(table), Mapping):
                named[table] = {_under(key): value for key, value in named[table].items()}
        try:
            config = msgspec.convert(named, cls, strict=True)
        except msgspec.ValidationError as error:
            raise ConfigError(_told(str(error))) from None
        config._check()
        return config

    @property
    def tables(self) -> dict[str, Any]:
        """The same as :meth:`of` reads it, of values that JSON has, without what is the default."""
        return _without(_as_json(self), _as_json(type(self)()))

    @property
    def words(self) -> list[str]:
        """The command line of each server behind ``penstock serve``, but for what is set for each
        of them: where it listens, how long it has to end."""
        options: Options = dict(self.serve)
        if self.threads is not None:
            options["threads"] = self.threads
        if self.autoscaling.slo:
            options["slo"] = list(self.autoscaling.slo)
        return serve_words(self.model, options)

    @property
    def threads(self) -> int | None:
        """Threads that a server is given by ``cpus``; None where the options say, or nothing."""
        cpus = self.replicas.cpus
        if cpus is None or "threads" in self.serve or self.replicas.gpus:
            return None
        return max(1, int(cpus))

    @property
    def cpus(self) -> float:
        """CPUs of a replica."""
        threads = self.serve.get("threads")
        of_threads = float(threads) if isinstance(threads, int) else 1.0
        return self.replicas.cpus if self.replicas.cpus is not None else of_threads

    def _check(self) -> None:
        replicas, scaling, routing = self.replicas, self.autoscaling, self.routing
        if not _NAME.fullmatch(self.name):
            raise ConfigError(
                f"name: {self.name!r} must be lower-case letters, digits and dashes, such as "
                "'my-chat', at most 40 of them, of which the first is a letter"
            )
        if self.model is not None and (not self.model or self.model.startswith("-")):
            raise ConfigError(
                f"model: {self.model!r} is no model; name a folder, a file or a model of the hub, "
                "or leave it out for the demo model"
            )
        if replicas.most < replicas.min:
            raise ConfigError(
                f"replicas.max: {replicas.max} is less than replicas.min, {replicas.min}"
            )
        if replicas.most > 1 and not (replicas.gpus or replicas.cpus or "threads" in self.serve):
            raise ConfigError(
                "replicas.cpus: say how many CPUs each replica has, since several may be on one "
                "machine, such as cpus = 4"
            )
        if replicas.memory is not None and not MEMORY.fullmatch(replicas.memory):
            raise ConfigError(f"replicas.memory: {replicas.memory!r} is no size, such as '8Gi'")
        if (replicas.memory_bytes or 0) > MOST_MEMORY:
            raise ConfigError(f"replicas.memory: {replicas.memory!r} is more than Ray can count")
        try:
            limits = scaling.limits
        except ConfigError as error:
            raise ConfigError(f"autoscaling.slo: {str(error).removeprefix('--slo ')}") from None
        if strange := [limit for limit in limits if limit.measure in ("ttfo", "ttst")]:
            raise ConfigError(
                f"autoscaling.slo: a server knows ttft, tpot and e2el, not {strange[0].measure}"
            )
        if routing.policy not in POLICIES:
            raise ConfigError(
                f"routing.policy: {routing.policy!r} is none; there are {', '.join(POLICIES)}"
            )
        if (routing.tls_cert is None) != (routing.tls_key is None):
            raise ConfigError("routing.tls_cert: HTTPS needs both tls_cert and tls_key")
        try:
            serve_words(self.model, self.serve)
        except SetElsewhereError as error:
            raise ConfigError(f"serve.{error.option}: {error}") from None


def _check_values(where: str, value: Any) -> None:
    """Raise ConfigError for values that TOML has, and neither JSON nor a command line."""
    if isinstance(value, Mapping):
        for key, each in value.items():
            _check_values(f"{where}.{key}" if where else str(key), each)
    elif isinstance(value, list | tuple):
        for each in value:
            _check_values(where, each)
    elif isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{where}: {value} is no finite number")
    elif isinstance(value, str) and "\0" in value:
        raise ConfigError(f"{where}: {value!r} has a null character, which no option may have")


def _as_json(config: DeployConfig) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(config))
    return found


def _under(key: str) -> str:
    return key.replace("-", "_")


def _told(error: str) -> str:
    """msgspec's error, which ends with a path, as ``table.key: what is wrong``."""
    text, _, path = error.partition(" - at `$")
    where = path.rstrip("`").lstrip(".").removesuffix("[...]")
    unknown = re.fullmatch(r"Object contains unknown field `(.*)`", text)
    if unknown is None:
        for theirs, ours in _WORDS.items():
            text = text.replace(theirs, ours)
        return f"{where}: {text[0].lower()}{text[1:]}" if where else text
    table = _TABLES.get(where, DeployConfig)
    known = ", ".join(table.__struct_fields__)
    prefix = f"{where}." if where else ""
    return f"{prefix}{unknown[1]}: there is no such key; there are {known}"


def _without(values: dict[str, Any], usual: Mapping[str, Any]) -> dict[str, Any]:
    found = {}
    for key, value in values.items():
        if isinstance(value, dict) and key != "serve":
            value = _without(value, usual[key])
        if value not in (usual[key], {}):
            found[key] = value
    return found
