"""What pages of other sites send through a browser: names, origins, types of bodies."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from support.http_client import Server, running
from support.http_server import ADMIN_KEY

from penstock.cli.main import main
from penstock.server.hosts import HostRule, plain_host

BODY = {"model": "fake", "prompt": "a", "max_tokens": 1}
DATA = json.dumps(BODY).encode()
PATHS = ["/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/embeddings"]
PATHS += ["/tokenize", "/detokenize"]


@pytest.fixture(scope="module")
def local(tokenizer_folder: Path) -> Iterator[Server]:
    """As ``penstock serve`` is by default, with a name and an origin besides."""
    with running(
        tokenizer_folder,
        1,
        allowed_hosts=["penstock.example", "192.168.7.7"],
        cors_origins=["https://app.example", "chrome-extension://abc"],
    ) as server:
        yield server


@pytest.fixture(scope="module")
def locked(tokenizer_folder: Path) -> Iterator[Server]:
    """One that needs keys."""
    with running(tokenizer_folder, 1, allowed_hosts=[], api_keys="key") as server:
        yield server


def code(response: httpx.Response) -> tuple[int, str | None]:
    error = response.json().get("error", {})
    return response.status_code, error.get("code")


def sent(server: Server, headers: dict[str, str], path: str = "/v1/completions") -> httpx.Response:
    headers = {"content-type": "application/json", **headers}
    return server.http.post(path, content=DATA, headers=headers)


@pytest.mark.parametrize(
    "content_type",
    [
        "application/json",
        "Application/JSON",
        "application/json; charset=utf-8",
        "application/json;charset=UTF-8",
        'application/json; charset="utf-8"',
        "application/json; charset=us-ascii",
        "application/json; odata=verbose",
        "application/vnd.api+json",
        "application/ld+json; charset=utf8",
    ],
)
def test_bodies_of_json(server: Server, content_type: str) -> None:
    assert sent(server, {"content-type": content_type}).status_code == 200


@pytest.mark.parametrize(
    ("content_type", "named"),
    [
        ("text/plain", "text/plain"),
        ("text/plain; charset=utf-8", "text/plain"),
        ("application/x-www-form-urlencoded", "application/x-www-form-urlencoded"),
        ("multipart/form-data; boundary=application/json", "multipart/form-data"),
        ("text/json", "text/json"),
        ("application/jsonp", "application/jsonp"),
        ("application/json, text/plain", "text/plain"),
        ("text/plain; a=application/json", "text/plain"),
        ("application/xml+jsonx", "xml+jsonx"),
        ("application/+json", "+json"),
        ("json", "json"),
        ("", "it is"),
        ("application/json; charset=latin-1", "latin-1"),
        ("application/json; charset=utf-16", "utf-16"),
    ],
)
@pytest.mark.parametrize("path", PATHS)
def test_other_bodies_are_refused_and_the_header_is_named(
    server: Server, content_type: str, named: str, path: str
) -> None:
    answer = sent(server, {"content-type": content_type}, path)
    assert code(answer) == (415, "unsupported_media_type")
    message = answer.json()["error"]["message"]
    assert named in message
    assert "-H 'Content-Type: application/json'" in message


def test_a_body_without_a_type_is_refused(server: Server) -> None:
    answer = server.http.post("/v1/completions", content=DATA)
    assert code(answer) == (415, "unsupported_media_type")
    assert "it has none" in answer.json()["error"]["message"]
    chunks = server.http.post("/v1/completions", content=iter([DATA]))
    assert code(chunks) == (415, "unsupported_media_type")
    twice = [("content-type", "application/json"), ("content-type", "text/plain")]
    assert server.http.post("/tokenize", content=DATA, headers=twice).status_code == 415


def test_a_compressed_body_is_refused(server: Server) -> None:
    answer = sent(server, {"content-encoding": "gzip"})
    assert code(answer) == (415, "unsupported_media_type")
    assert "gzip" in answer.json()["error"]["message"]
    assert sent(server, {"content-encoding": "identity"}).status_code == 200


def test_the_administrators_bodies_are_json_too(server: Server) -> None:
    admin = {"authorization": f"Bearer {ADMIN_KEY}"}
    plain = {**admin, "content-type": "text/plain"}
    answer = server.http.post("/admin/abort", content=b'{"all": true}', headers=plain)
    assert answer.status_code == 415
    assert server.http.post("/admin/check", headers=admin).status_code == 200  # no body


def test_keys_do_not_change_what_a_body_may_be(locked: Server) -> None:
    headers = {"authorization": "Bearer key", "content-type": "text/plain"}
    assert sent(locked, headers).status_code == 415
    assert sent(locked, {"content-type": "text/plain"}).status_code == 401


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LOCALHOST.:1",
        "localhost:",
        "localhost:8000",
        "127.0.0.1",
        "127.1.2.3:65535",
        "[::1]",
        "[::1]:8000",
        "[0:0:0:0:0:0:0:1]",
        "[::ffff:127.0.0.1]",
        "penstock.example",
        "Penstock.Example:443",
        "192.168.7.7:8000",
    ],
)
def test_names_of_this_server(local: Server, host: str) -> None:
    assert local.http.get("/v1/models", headers={"host": host}).status_code == 200
    assert sent(local, {"host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8000",
        "localhost.evil.example",
        "evil-localhost",
        "127.0.0.1.evil.example",
        "x.penstock.example",
        "192.168.7.8",
        "0.0.0.0",
        "[::2]",
        "[::1",
        "::1",
        "localhost:8000:1",
        "localhost:x",
        "a@localhost",
        "localhost/",
        "[localhost]",
        "127.1",
        "2130706433",
        "",
    ],
)
def test_other_names_are_refused(local: Server, host: str) -> None:
    for answer in (
        local.http.get("/v1/models", headers={"host": host}),
        local.http.get("/nothing", headers={"host": host}),
        sent(local, {"host": host}),
        local.http.get("/admin/status", headers={"host": host}),
    ):
        assert code(answer) == (421, "host_not_allowed")
        assert "--allowed-host" in answer.json()["error"]["message"]
    assert local.http.get("/health", headers={"host": host}).status_code == 200  # probes
    assert local.http.get("/ready", headers={"host": host}).status_code == 200


def test_with_keys_every_name_is_taken(locked: Server) -> None:
    headers = {"host": "evil.example", "authorization": "Bearer key"}
    assert sent(locked, headers).status_code == 200
    assert sent(locked, {**headers, "origin": "https://evil.example"}).status_code == 200


def test_rules_for_hosts() -> None:
    machine = socket.gethostname().lower()
    public = HostRule.of("0.0.0.0", "0.0.0.0", [], False)
    assert public is not None
    for host in ("10.0.0.1", "127.0.0.1:80", "[2001:db8::1]", "localhost", machine):
        assert public.takes(host), host
    assert public.takes(f"{machine.partition('.')[0]}.local:8000")
    assert not public.takes("evil.example")
    assert not public.takes("penstock")
    named = HostRule.of("Gpu.Example.", "10.0.0.1", ["penstock"], False)
    assert named is not None
    assert named.takes("gpu.example:1")
    assert named.takes("penstock")
    assert HostRule.of("127.0.0.1", "127.0.0.1", ["*"], False) is None
    assert HostRule.of("0.0.0.0", "0.0.0.0", [], True) is None
    with_keys = HostRule.of("0.0.0.0", "0.0.0.0", ["a.example"], True)
    assert with_keys is not None
    assert not with_keys.takes("b.example")


def test_hosts_in_options(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["A.Example.", "*", "[::1]", "::1", "0:0::1", "10.0.0.1", "a_b", "b\u00fccher.example"]
    plain = ["a.example", "*", "::1", "::1", "::1", "10.0.0.1", "a_b", "xn--bcher-kva.example"]
    assert [plain_host(text) for text in given] == plain
    for bad in (
        "",
        "a:80",
        "http://a",
        "a/b",
        "*.a",
        "a b",
        "[a]",
        "[::1",
        "a..b",
        "[::1]:80",
        "x" * 300,
    ):
        assert main(["serve", "--allowed-host", bad]) == 2
        assert "not the name or address of a host" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        ("https://app.example", "localhost"),
        ("chrome-extension://abc", "localhost"),
        ("http://localhost:8000", "localhost:8000"),
        ("http://LOCALHOST:80", "localhost"),
        ("https://penstock.example", "penstock.example"),  # a proxy speaks HTTPS
        ("https://penstock.example", "penstock.example:443"),
        ("http://[::1]:8000", "[::1]:8000"),
    ],
)
def test_origins_that_may_ask(local: Server, origin: str, host: str) -> None:
    assert sent(local, {"origin": origin, "host": host}).status_code == 200


@pytest.mark.parametrize(
    "origin",
    [
        "https://evil.example",
        "https://app.example:444",
        "http://app.example",
        "http://localhost:3000",
        "null",
        "",
        "file://",
        "chrome-extension://other",
        "http://[",
    ],
)
def test_origins_that_may_not(local: Server, origin: str) -> None:
    answer = sent(local, {"origin": origin, "host": "localhost"})
    assert code(answer) == (403, "origin_not_allowed")
    assert "--cors-origin" in answer.json()["error"]["message"]
    read = local.http.get("/v1/models", headers={"origin": origin, "host": "localhost"})
    assert read.status_code == 200  # a browser shows it to no page
    assert "access-control-allow-origin" not in read.headers


def test_a_second_origin_hides_behind_no_first(local: Server) -> None:
    origins = [("host", "localhost"), ("origin", "http://localhost"), ("origin", "http://evil")]
    answer = local.http.post("/v1/completions", json={}, headers=origins)
    assert code(answer) == (403, "origin_not_allowed")


def test_all_origins(tokenizer_folder: Path) -> None:
    with running(tokenizer_folder, 1, cors_origins=["*"]) as server:
        answer = sent(server, {"origin": "https://any.example"})
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-origin"] == "*"
