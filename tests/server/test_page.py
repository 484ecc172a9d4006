"""The page for browsers, as a client without a browser sees it: files, headers, access."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import pytest
from msgspec import to_builtins
from support.http_client import Server, running
from support.http_server import ADMIN_KEY

from penstock.sampling.defaults import INTERACTIVE

STATIC = Path(str(files("penstock.server.page"))) / "static"
SCRIPTS = sorted(STATIC.rglob("*.js"))
VIEWS = ["/", "/engine", "/docs"]
KEY = "users-key"
WRITES_MARKUP = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|srcdoc|setHTML|\beval\b"
    r"|new Function|createContextualFragment"
)


@pytest.fixture(scope="module")
def guarded(tokenizer_folder: Path) -> Iterator[Server]:
    """A server that has keys."""
    with running(tokenizer_folder, 1, api_keys=KEY) as server:
        yield server


@pytest.mark.parametrize("path", VIEWS)
def test_every_view_has_the_document(server: Server, path: str) -> None:
    answer = server.http.get(path)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.content == (STATIC / "index.html").read_bytes()


def test_only_what_this_server_sends_may_run(server: Server) -> None:
    headers = server.http.get("/").headers
    policy = dict(
        (part.strip().split(" ", 1) + [""])[:2]
        for part in headers["content-security-policy"].split(";")
    )
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert policy["require-trusted-types-for"] == "'script'"
    assert not any("unsafe" in sources for sources in policy.values())
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"


def test_files_are_kept_and_asked_for_again(server: Server) -> None:
    answer = server.http.get("/page/main.js")
    assert answer.headers["cache-control"] == "no-cache"
    etag = answer.headers["etag"]
    for given in (etag, f'"other", W/{etag}', "*"):
        again = server.http.get("/page/main.js", headers={"if-none-match": given})
        assert (again.status_code, again.content) == (304, b"")
        assert again.headers["etag"] == etag
        assert "content-security-policy" in again.headers
    changed = server.http.get("/page/main.js", headers={"if-none-match": '"other"'})
    assert changed.content == answer.content
    head = server.http.head("/page/main.js")
    assert (head.status_code, head.content) == (200, b"")


def test_files_that_are_not_there(server: Server) -> None:
    for path in ("/page/", "/page/none.js", "/page/../bundle.py", "/page/%2e%2e/bundle.py"):
        assert server.http.get(path).status_code == 404, path
    assert server.http.post("/engine").status_code == 405


def test_all_that_files_name_is_sent(server: Server) -> None:
    """Each import of a script, and each file that the document names."""
    document = (STATIC / "index.html").read_text()
    named = set(re.findall(r'(?:src|href)="(/page/[^"]+)"', document))
    for script in SCRIPTS:
        for target in re.findall(r'from "(\.[^"]+)"', script.read_text()):
            found = (script.parent / target).resolve()
            assert found.exists(), f"{script.name} imports {target}"
            named.add(f"/page/{found.relative_to(STATIC)}")
    for path in sorted(named):
        answer = server.http.get(path)
        assert answer.status_code == 200, path
        kinds = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
        assert answer.headers["content-type"].startswith(kinds[Path(path).suffix])
    unused = {f"/page/{s.relative_to(STATIC)}" for s in STATIC.rglob("*.*")} - named
    assert unused == {"/page/index.html"}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: str(path.relative_to(STATIC)))
def test_no_script_makes_markup_of_text(script: Path) -> None:
    assert not WRITES_MARKUP.search(script.read_text())
    assert "http://" not in script.read_text().replace("http://www.w3.org/", "")


def test_the_page_is_for_everybody_and_what_it_reads_is_not(guarded: Server) -> None:
    http = guarded.http
    for path in (*VIEWS, "/page/main.js", "/page/style/base.css"):
        assert http.get(path).status_code == 200, path
    for path in ("/engine/events", "/openapi.json", "/v1/models", "/page/none.js"):
        assert http.get(path).status_code == 401, path
    headers = {"authorization": f"Bearer {KEY}"}
    assert http.get("/v1/models", headers=headers).status_code == 200
    with http.stream("GET", "/engine/events", headers=headers) as events:
        assert events.status_code == 200


def test_other_sites_names_get_no_page(tokenizer_folder: Path) -> None:
    with running(tokenizer_folder, 1, allowed_hosts=["penstock.example"]) as server:
        assert server.http.get("/", headers={"host": "evil.example"}).status_code == 421
        assert server.http.get("/", headers={"host": "penstock.example"}).status_code == 200


def test_a_server_may_have_no_page(tokenizer_folder: Path) -> None:
    with running(tokenizer_folder, 1, page=False, api_keys=KEY) as server:
        http, headers = server.http, {"authorization": f"Bearer {ADMIN_KEY}"}
        for path in (*VIEWS, "/page/main.js"):
            status = 405 if path == "/" else 404  # clients of TGI post to it
            assert http.get(path, headers=headers).status_code == status, path
            assert http.get(path).status_code == 401, path
        document = http.get("/openapi.json", headers=headers).json()
        assert "/engine/events" in document["paths"]
        with http.stream("GET", "/engine/events", headers=headers) as events:
            assert events.status_code == 200


def test_the_model_says_what_it_can_be_asked_for(server: Server, tool_server: Server) -> None:
    def asked_for(of: Server) -> tuple[list[str], str, str]:
        (card,) = of.http.get("/v1/models").json()["data"]
        return card["capabilities"], card["tool_style"], card["made_for"]

    assert asked_for(server) == (["completion", "chat", "tools"], "generic", "chat")
    can = ["completion", "chat", "tools", "reasoning"]
    assert asked_for(tool_server) == (can, "hermes", "chat")


def test_the_model_says_what_its_chat_template_reads(tool_server: Server) -> None:
    (card,) = tool_server.http.get("/v1/models").json()["data"]
    assert card["chat_template_kwargs"] == ["thinking"]


def test_the_server_says_what_the_page_begins_with(server: Server) -> None:
    (card,) = server.http.get("/v1/models").json()["data"]
    assert card["sampling_defaults"] == {}
    assert card["interactive_defaults"] == to_builtins(INTERACTIVE)
