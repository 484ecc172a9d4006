"""Headers that clients make up: believed by nobody, and none makes the server fail."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.http_client import Server, running

from penstock.server.errors import ApiError
from penstock.server.read_body import check_json_type

COMPLETIONS = "/v1/completions"
BODY = json.dumps({"model": "fake", "prompt": "Hi", "max_tokens": 1}).encode()
DIGITS = "1" * 5000


def test_nobody_chooses_the_address_that_he_comes_from(
    tokenizer_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "*")
    log = tmp_path / "log"
    with log.open("wb") as file, running(tokenizer_folder, 1, stderr=file) as server:
        reported = {"x-forwarded-for": "203.0.113.7", "x-forwarded-proto": "https"}
        headers = {"content-type": "application/json", **reported}
        assert server.http.post(COMPLETIONS, content=BODY, headers=headers).status_code == 200
    (line,) = [line for line in log.read_text().splitlines() if COMPLETIONS in line]
    assert "client=127.0.0.1:" in line
    assert "203.0.113.7" not in log.read_text()


def posted(server: Server, **headers: str | bytes) -> httpx.Response:
    given = {"content-type": "application/json"}
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    pairs = [
        (name.encode(), value if isinstance(value, bytes) else value.encode())
        for name, value in (given | named).items()  # type: ignore[operator]
    ]
    return server.http.post(COMPLETIONS, content=BODY, headers=pairs)


JSON_TYPES = [
    "application/json",
    "Application/JSON",
    "application/json;charset=utf-8",
    "application/json ; charset=UTF-8",
    'application/json; charset="utf-8"',
    "application/json; charset=utf8; profile=x",
    'application/json; odata.metadata=full; a="b;c\\"d"',
    "application/json;",
    "application/json; ; charset=us-ascii;",
    "application/vnd.api+json",
]
OTHER_TYPES = [
    "",
    "json",
    "text/json",
    "text/plain",
    "text/plain; application/json",
    "application/+json",
    "application/json/x",
    "application/json, text/plain",
    "application/json charset=utf-8",
    "application/json; charset",
    "application/json; charset=",
    "application/json; charset=latin-1",
    "application/json; charset=utf-8; charset=latin-1",
    "application/json; charset*=utf-8''utf-8",
    "application/json; charset*0=utf-8",
    f"application/json; charset*{DIGITS}=x",
    f"application/json; charset*{DIGITS}*=x",
    f"application/json; {'a;' * 4000}=x",
    'application/json; charset="utf-8',
    "application/json; \u00e9=x",
]  # fmt: skip


@pytest.mark.parametrize("kind", JSON_TYPES)
def test_types_that_are_json(server: Server, kind: str) -> None:
    assert posted(server, content_type=kind).status_code == 200


@pytest.mark.parametrize("kind", OTHER_TYPES, ids=lambda kind: str(kind)[:40])
def test_types_that_are_not(server: Server, kind: str) -> None:
    answer = posted(server, content_type=kind.encode("latin-1"))
    assert answer.status_code == 415, answer.text
    assert answer.json()["error"]["code"] == "unsupported_media_type"


@given(st.text(alphabet='abcharset/+*=;," \\\t01\u00e9', max_size=30))
def test_any_type_is_taken_or_refused(rest: str) -> None:
    with contextlib.suppress(ApiError):
        check_json_type(f"application/json{rest}")


def test_a_preflight_that_is_refused_says_so_in_openais_shape(strict_server: Server) -> None:
    for origin, status in (("http://page.example", 200), ("http://other.example", 400)):
        headers = {"origin": origin, "access-control-request-method": "POST"}
        answer = strict_server.http.options(COMPLETIONS, headers=headers)
        assert answer.status_code == status
    error = answer.json()["error"]
    assert error["code"] == "preflight_refused"
    assert "'http://other.example'" in error["message"]
    assert "access-control-allow-origin" not in answer.headers


NASTY = [
    DIGITS,
    "-1",
    "nan",
    "1e999",
    "\u00e9\u00ff",
    "a" * 5000,
    f"http://x:{DIGITS}",
    f"x:{DIGITS}",
    "[::1",
    "[::1%25eth0]:1",
    "http://[::1",
    "http://\u00b2:80",
    "bytes=0-" + DIGITS,
    f"00-{'0' * 32}-{'f' * 16}-01",
    f"00-{DIGITS}-{DIGITS}-{DIGITS}",
    "Bearer \u00e9",
    "Bearer",
    "%",
    "\"';=,*",
]
NAMES = (
    "x-request-timeout",
    "x-request-id",
    "range",
    "host",
    "origin",
    "authorization",
    "x-api-key",
    "traceparent",
    "tracestate",
    "content-encoding",
    "accept-encoding",
    "x-forwarded-for",
    "access-control-request-headers",
    "access-control-request-method",
    "cookie",
    "if-modified-since",
    "expect",
)


@pytest.fixture(scope="module")
def strict_server(tokenizer_folder: Path) -> Iterator[Server]:
    """One that looks at all that it may look at."""
    settings: dict[str, Any] = {
        "api_keys": "secret",
        "cors_origins": ("http://page.example",),
        "allowed_hosts": ("penstock.example", "127.0.0.1"),
        "otlp_endpoint": "http://127.0.0.1:9/",
    }
    with running(tokenizer_folder, 1, **settings) as server:
        yield server


@pytest.mark.thinned(7)
@pytest.mark.parametrize("name", NAMES)
def test_no_header_makes_the_server_fail(server: Server, strict_server: Server, name: str) -> None:
    for asked in (server, strict_server):
        for value in NASTY:
            for method, path in (("POST", COMPLETIONS), ("GET", "/v1/models"), ("OPTIONS", "/")):
                headers = [
                    (b"content-type", b"application/json"),
                    (name.encode(), value.encode("latin-1")),
                ]
                if asked is strict_server and name != "authorization":
                    headers.append((b"authorization", b"Bearer secret"))
                if method == "OPTIONS" and name != "origin":
                    headers.append((b"origin", b"http://page.example"))
                content = BODY if method == "POST" else b""
                answer = asked.http.request(method, path, content=content, headers=headers)
                assert answer.status_code < 500, (value, answer.text)
                if answer.status_code >= 400:
                    assert answer.json()["error"]["message"], value
