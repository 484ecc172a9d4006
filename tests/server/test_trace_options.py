"""Where traces go: the flag, OpenTelemetry's variables, and what is refused."""

from __future__ import annotations

import pytest

from penstock.errors import ConfigError
from penstock.server import trace_options as module
from penstock.server.trace_options import trace_options


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "installed", lambda: True)


@pytest.mark.parametrize(
    ("flag", "environment", "endpoint"),
    [
        (None, {}, None),
        ("http://c:4318", {}, "http://c:4318/v1/traces"),
        ("http://c:4318/", {}, "http://c:4318/v1/traces"),
        ("https://c/otlp/v1/traces", {}, "https://c/otlp/v1/traces"),
        (None, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://e"}, "http://e/v1/traces"),
        (None, {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://t/x"}, "http://t/x"),
        ("http://c", {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://t/x"}, "http://c/v1/traces"),
        (None, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://e", "OTEL_SDK_DISABLED": "True"}, None),
        (None, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://e", "OTEL_TRACES_EXPORTER": "none"}, None),
        (None, {"OTEL_SERVICE_NAME": "x"}, None),
    ],
)
def test_where_traces_go(
    flag: str | None, environment: dict[str, str], endpoint: str | None
) -> None:
    options = trace_options(flag, environment)
    assert (None if options is None else options.endpoint) == endpoint


@pytest.mark.parametrize(
    ("flag", "environment", "words"),
    [
        ("localhost:4318", {}, "--otlp-endpoint is 'localhost:4318', no URL"),
        ("http://", {}, "no URL"),
        ("http://c:port", {}, "no URL"),
        (None, {"OTEL_EXPORTER_OTLP_ENDPOINT": "grpc://c"}, "OTEL_EXPORTER_OTLP_ENDPOINT is"),
        ("http://c", {"OTEL_SDK_DISABLED": "true"}, "turns them off"),
        ("http://c", {"OTEL_TRACES_EXPORTER": "none"}, "turns them off"),
        ("http://c", {"OTEL_TRACES_EXPORTER": "zipkin"}, "'zipkin'"),
        ("http://c", {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "'grpc'"),
        ("http://c", {"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/json"}, "'http/json'"),
        (None, {"OTEL_TRACES_EXPORTER": "otlp"}, "say where to"),
    ],
)
def test_what_cannot_be_honoured_is_refused(
    flag: str | None, environment: dict[str, str], words: str
) -> None:
    with pytest.raises(ConfigError) as error:
        trace_options(flag, environment)
    assert words in str(error.value)


def test_a_missing_installation_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "installed", lambda: False)
    assert trace_options(None, {}) is None
    for flag, environment in (
        ("http://c", {}),
        (None, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c"}),
    ):
        with pytest.raises(ConfigError, match="pip install 'penstock\\[otel\\]'"):
            trace_options(flag, environment)
