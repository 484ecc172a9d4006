"""Tracing options, from the command line and the environment."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from penstock.errors import ConfigError

INSTALL = "pip install 'penstock[otel]'"
TRACES_PATH = "v1/traces"

_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
_TRACES_ENDPOINT = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")


@dataclass(frozen=True)
class TraceOptions:
    """Export over OTLP/HTTP. Headers, sampling and service name come from OpenTelemetry's
    environment."""

    endpoint: str
    """Full URL that spans are posted to."""


def trace_options(flag: str | None, environment: Mapping[str, str]) -> TraceOptions | None:
    """What ``--otlp-endpoint`` and OpenTelemetry's variables ask for; None: no tracing.

    Raises ConfigError for what cannot be honoured, a missing installation among it.
    """

    def variable(name: str) -> str:
        return environment.get(name, "").strip()

    asked = flag or variable(_TRACES_ENDPOINT) or variable(_ENDPOINT)
    exporter = variable("OTEL_TRACES_EXPORTER").lower()
    if variable("OTEL_SDK_DISABLED").lower() == "true" or exporter == "none" or not asked:
        if flag:
            raise ConfigError(
                "--otlp-endpoint asks for traces, and OTEL_SDK_DISABLED or OTEL_TRACES_EXPORTER "
                "turns them off; drop one of them"
            )
        if exporter == "otlp" and variable("OTEL_SDK_DISABLED").lower() != "true":
            raise ConfigError(f"OTEL_TRACES_EXPORTER is otlp; say where to by {_ENDPOINT}")
        return None
    if exporter not in ("", "otlp"):
        raise ConfigError(
            f"OTEL_TRACES_EXPORTER is {exporter!r}; traces are sent by otlp, or none are"
        )
    protocol = next((variable(name) for name in _PROTOCOLS if variable(name)), "http/protobuf")
    if protocol != "http/protobuf":
        raise ConfigError(
            f"OTEL_EXPORTER_OTLP_PROTOCOL is {protocol!r}; traces are sent by http/protobuf, for "
            "which collectors listen on port 4318"
        )
    whole = not flag and bool(variable(_TRACES_ENDPOINT))
    source = "--otlp-endpoint" if flag else _TRACES_ENDPOINT if whole else _ENDPOINT
    endpoint = _url(asked, source, whole)
    if not installed():
        raise ConfigError(
            f"{source} asks for traces, and OpenTelemetry is not installed: {INSTALL}"
            + ("" if flag else " (or turn traces off with OTEL_SDK_DISABLED=true)")
        )
    return TraceOptions(endpoint)


def installed() -> bool:
    """Whether the packages of the extra ``otel`` are installed."""
    try:
        found = map(
            importlib.util.find_spec,
            ("opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http"),
        )
        return all(spec is not None for spec in found)
    except ModuleNotFoundError:  # of a package above
        return False


def _url(asked: str, source: str, whole: bool) -> str:
    """The URL of the traces; ``whole``: as it was given, otherwise a base, which may end in it."""
    try:
        parts = urlsplit(asked)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number
        good = False
    if not good:
        raise ConfigError(
            f"{source} is {asked!r}, no URL of a collector such as http://localhost:4318"
        )
    base = asked.rstrip("/")
    return asked if whole else base if base.endswith(f"/{TRACES_PATH}") else f"{base}/{TRACES_PATH}"
