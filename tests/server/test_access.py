"""Who may ask what: API keys, the admin's key, other origins, TLS."""

from __future__ import annotations

import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from support.http_client import JSON, Server, running
from support.http_server import ADMIN_KEY
from support.needs import Need, lacking

from penstock.errors import ConfigError
from penstock.server.keys import Keys, bearer, fingerprint

ROUTES = [
    ("GET", "/v1/models"),
    ("GET", "/v1/models/fake"),
    ("POST", "/v1/completions"),
    ("POST", "/v1/chat/completions"),
    ("GET", "/metrics"),
    ("GET", "/version"),
    ("GET", "/nothing/here"),
    ("GET", "/health/"),
]
ADMIN_ROUTES = [
    ("GET", "/admin/status"),
    ("POST", "/admin/abort"),
    ("POST", "/admin/drain"),
    ("POST", "/admin/resume"),
    ("POST", "/admin/cache/clear"),
    ("POST", "/admin/check"),
    ("POST", "/admin/log-level"),
    ("GET", "/admin/nothing"),
    ("POST", "/v1/load_lora_adapter"),
    ("POST", "/v1/unload_lora_adapter"),
]


@pytest.fixture(scope="module")
def locked(tokenizer_folder: Path) -> Iterator[Server]:
    with running(
        tokenizer_folder, 1, api_keys="first-key,second-key", cors_origins=["https://a.example"]
    ) as server:
        yield server


def code(response: httpx.Response) -> tuple[int, str | None]:
    error = response.json().get("error", {})
    return response.status_code, error.get("code")


@pytest.mark.parametrize(("method", "path"), [*ROUTES, *ADMIN_ROUTES])
@pytest.mark.parametrize(
    "header", [None, "", "Bearer", "Bearer first-ke", "Basic first-key", "first-key"]
)
def test_without_a_valid_key_nothing_is_answered(
    locked: Server, method: str, path: str, header: str | None
) -> None:
    headers = {} if header is None else {"authorization": header}
    response = locked.http.request(method, path, headers=headers, follow_redirects=False)
    assert code(response) == (401, "invalid_api_key")
    assert response.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("path", ["/health", "/ready"])
def test_health_needs_no_key(locked: Server, path: str) -> None:
    assert locked.http.get(path).status_code == 200


@pytest.mark.parametrize("key", ["first-key", "second-key", ADMIN_KEY])
def test_every_key_opens_the_api(locked: Server, key: str) -> None:
    headers = {"authorization": f"bearer {key}"}
    body = {"model": "fake", "prompt": "a", "max_tokens": 1}
    assert locked.http.post("/v1/completions", json=body, headers=headers).status_code == 200
    assert locked.http.get("/metrics", headers=headers).status_code == 200


@pytest.mark.parametrize(("method", "path"), ADMIN_ROUTES)
def test_a_users_key_does_not_administer(locked: Server, method: str, path: str) -> None:
    headers = {"authorization": "Bearer first-key"}
    response = locked.http.request(method, path, headers=headers)
    assert code(response) == (403, "admin_key_required")


def test_the_admin_administers(locked: Server) -> None:
    assert locked.admin("cache/clear", {}).json() == {"cleared": True}
    assert locked.admin("check", {}).json() == {"ok": True}
    assert locked.admin("log-level", {"level": "debug"}).json() == {"level": "debug"}
    assert locked.admin("log-level", {"level": "loud"}).status_code == 400
    assert locked.admin("log-level", {"levle": "info"}).status_code == 400
    assert locked.admin("log-level", {"level": "x" * 5000}).status_code == 413
    assert locked.admin("abort", {}).status_code == 400
    assert locked.admin("abort", {"request_id": "none"}).json() == {"aborted": 0}
    assert locked.admin("abort", {"all": True}).json() == {"aborted": 0}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("abort", b'{"request_id": 5}', "request_id"),
        ("abort", b'{"all": true, "all": false}', "all"),
        ("abort", b'{"every": true}', "every"),
        ("cache/clear", b'{"every": true}', "every"),
        ("check", b'{"every": true}', "every"),
        ("drain", b'{"every": true}', "every"),
        ("resume", b'{"every": true}', "every"),
        ("log-level", b"{}", "level"),
        ("log-level", b'{"level": "\\ud800"}', None),
        ("log-level", b"[" * 4000, None),
    ],
)
def test_what_an_administrator_cannot_mean(
    locked: Server, path: str, body: bytes, param: str | None
) -> None:
    headers = {"authorization": "Bearer admin-key", **JSON}
    response = locked.http.post(f"/admin/{path}", content=body, headers=headers)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


def test_books_that_do_not_agree_are_reported(tokenizer_folder: Path) -> None:
    body = {"model": "fake", "prompt": "a", "max_tokens": 1, "cache_salt": "falsify"}
    with running(tokenizer_folder, 1) as server:
        assert server.admin("check", {}).json() == {"ok": True}
        assert server.post("/v1/completions", body).status_code == 200
        answer = server.admin("check", {}).json()
        assert answer["ok"] is False
        assert "the books were falsified" in answer["error"]


def test_without_an_admin_key_nobody_administers() -> None:
    assert not Keys().is_admin("")
    assert not Keys().is_admin("anything")


def test_other_origins(locked: Server) -> None:
    asked = {
        "origin": "https://a.example",
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,content-type",
    }
    allowed = locked.http.options("/v1/completions", headers=asked)
    assert allowed.status_code == 200
    assert allowed.headers["access-control-allow-origin"] == "https://a.example"
    refused = locked.http.options(
        "/v1/completions", headers={**asked, "origin": "https://b.example"}
    )
    assert refused.status_code == 400
    assert "access-control-allow-origin" not in refused.headers
    plain = locked.http.get("/health", headers={"origin": "https://a.example"})
    assert plain.headers["access-control-allow-origin"] == "https://a.example"


STAINLESS = (
    "authorization, content-type, x-stainless-arch, x-stainless-lang, x-stainless-os, "
    "x-stainless-package-version, x-stainless-retry-count, x-stainless-runtime, "
    "x-stainless-runtime-version, x-stainless-timeout"
)


@pytest.mark.parametrize("headers", [STAINLESS, "x-api-key", "api-key, openai-organization"])
def test_a_browser_may_send_what_its_client_adds(locked: Server, headers: str) -> None:
    asked = {
        "origin": "https://a.example",
        "access-control-request-method": "POST",
        "access-control-request-headers": headers,
    }
    allowed = locked.http.options("/v1/chat/completions", headers=asked)
    assert allowed.status_code == 200, allowed.text
    reported = allowed.headers["access-control-allow-headers"].lower().replace(" ", "").split(",")
    assert set(headers.replace(" ", "").split(",")) <= set(reported)
    reported = locked.http.get("/health", headers={"origin": "https://a.example"}).headers
    assert "x-penstock-ignored" in reported["access-control-expose-headers"].lower()
    other = locked.http.options(
        "/v1/chat/completions", headers={**asked, "origin": "https://b.example"}
    )
    assert "access-control-allow-origin" not in other.headers


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"x-api-key": "first-key"}, 200),
        ({"api-key": "second-key"}, 200),
        ({"x-api-key": "first-ke"}, 401),
        ({"x-api-key": ""}, 401),
        ({"x-api-key": "wrong", "api-key": "first-key"}, 401),
        ({"authorization": "Bearer wrong", "x-api-key": "first-key"}, 401),
        ({"authorization": "Bearer first-key", "x-api-key": "wrong"}, 200),
        ({"authorization": "Basic dTpw", "x-api-key": "first-key"}, 200),
    ],
)
def test_keys_in_other_headers(locked: Server, headers: dict[str, str], status: int) -> None:
    assert locked.http.get("/v1/models", headers=headers).status_code == status
    admin = locked.http.get("/admin/status", headers={"x-api-key": ADMIN_KEY})
    assert admin.status_code == 200


def test_no_other_origin_is_allowed_by_default(server: Server) -> None:
    response = server.http.get("/health", headers={"origin": "https://a.example"})
    assert "access-control-allow-origin" not in response.headers


def test_keys_come_from_files_and_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# of the team\none\n\n  two  \n")
    admin = tmp_path / "admin"
    admin.write_text("boss\n")
    keys = Keys.read(file, admin, {"PENSTOCK_API_KEYS": "three, four"})
    assert [keys.is_user(k) for k in ("one", "two", "three", "four")] == [True] * 4
    assert [keys.is_user(k) for k in ("", "# of the team", "five", "boss", "onetwo")] == [False] * 5
    assert keys.is_admin("boss")
    assert not keys.is_admin("one")


@pytest.mark.parametrize(
    ("text", "environment", "message"),
    [
        ("", {}, "holds no key"),
        ("# none\n", {}, "holds no key"),
        ("two words\n", {}, "printable ASCII"),
        ("schlüssel\n", {}, "printable ASCII"),
        ("key\n", {"PENSTOCK_ADMIN_KEY": "key"}, "also a user's key"),
        ("key\n", {"PENSTOCK_API_KEYS": " , "}, "holds no key"),
        ("key\n", {"PENSTOCK_ADMIN_KEY": ""}, "printable ASCII"),
        (None, {}, "cannot be read"),
    ],
)
def test_keys_that_cannot_be_meant(
    tmp_path: Path, text: str | None, environment: dict[str, str], message: str
) -> None:
    file = tmp_path / "keys"
    if text is not None:
        file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=message):
        Keys.read(file, None, environment)


def test_keys_are_not_kept() -> None:
    keys = Keys.read(None, None, {"PENSTOCK_API_KEYS": "secret-value"})
    assert "secret-value" not in repr(keys)
    assert "secret" not in fingerprint("secret-value")
    assert bearer("Bearer  x ") == "x"
    assert bearer("Basic x") is None


def test_tls(tokenizer_folder: Path, tmp_path: Path) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1"]
    command += ["-keyout", str(key), "-out", str(certificate)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except FileNotFoundError:
        lacking(Need.PROGRAM, "openssl, to make a certificate")
    with running(tokenizer_folder, 1, tls=[str(certificate), str(key)]) as server:
        trusting = ssl.create_default_context(cafile=str(certificate))
        with httpx.Client(base_url=server.url, verify=trusting) as client:
            body = {"model": "fake", "prompt": "a", "max_tokens": 1}
            assert client.post("/v1/completions", json=body).status_code == 200
        with pytest.raises(httpx.RemoteProtocolError):
            httpx.get(server.url.replace("https", "http") + "/health", verify=False)
