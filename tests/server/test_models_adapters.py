"""Adapters that are loaded and unloaded while a server of several models runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.http_client import Server, running
from support.http_server import ADMIN_KEY
from support.waiting import PATIENCE_S, until

pytestmark = pytest.mark.slow  # engines are started and ended

CATALOGUE = """
default = "one"
[[models]]
name = "one"
model = "{folder}"
memory = 600_000_000
adapters = {{ fixed = "{adapters}/fixed" }}
[[models]]
name = "two"
model = "{folder}"
memory = 600_000_000
"""
"""Two models, of which one alone fits."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapters")
    for name in ("fixed", "sql", "notes", "brief"):
        (folder / name).mkdir()
    return folder


@pytest.fixture
def served(tokenizer_folder: Path, folders: Path, tmp_path: Path) -> Iterator[Server]:
    path = tmp_path / "models.toml"
    path.write_text(CATALOGUE.format(folder=tokenizer_folder, adapters=folders))
    with running(tokenizer_folder, 0, models=str(path)) as server:
        yield server


def ask(server: Server, what: str, **fields: Any) -> httpx.Response:
    headers = {"authorization": f"Bearer {ADMIN_KEY}"}
    return server.http.post(f"/v1/{what}_lora_adapter", json=fields, headers=headers)


def told(server: Server, model: str) -> str:
    """The digest of the adapter that a request for ``model`` is served with."""
    body = {"model": model, "prompt": "a", "max_tokens": 20, "cache_salt": "tell adapter"}
    answer = server.post("/v1/completions", body)
    assert answer.status_code == 200, answer.text
    text: str = answer.json()["choices"][0]["text"]
    return text


def names(server: Server) -> list[str]:
    return [card["id"] for card in server.http.get("/v1/models").json()["data"]]


def states(server: Server) -> dict[str, str]:
    return {each["name"]: each["state"] for each in server.admin("models").json()["models"]}


def test_one_comes_again_with_its_model(served: Server, folders: Path) -> None:
    path = str(folders / "sql")
    loaded = ask(served, "load", lora_name="sql", lora_path=path, model="two")
    assert loaded.status_code == 200, loaded.text
    assert states(served)["two"] == "ready"
    digest = told(served, "sql")
    assert digest
    assert digest != told(served, "two")
    card = served.http.get("/v1/models/sql").json()
    assert (card["parent"], card["root"]) == ("two", path)
    told(served, "one")
    until(lambda: states(served)["two"] == "unloaded", PATIENCE_S, "the other model to go")
    assert names(served) == ["one", "fixed", "two", "sql"]
    assert told(served, "sql") == digest
    assert ask(served, "unload", lora_name="sql").status_code == 200
    assert names(served) == ["one", "fixed", "two"]
    body = {"model": "sql", "prompt": "a"}
    assert served.post("/v1/completions", body).status_code == 404
    assert ask(served, "unload", lora_name="sql").status_code == 404


def test_the_usual_model_gets_those_without_one(served: Server, folders: Path) -> None:
    assert ask(served, "load", lora_name="notes", lora_path=str(folders / "notes")).is_success
    assert served.http.get("/v1/models/notes").json()["parent"] == "one"
    again = ask(served, "load", lora_name="notes", lora_path=str(folders / "notes"))
    assert again.status_code == 400
    in_place = ask(
        served, "load", lora_name="notes", lora_path=str(folders / "brief"), load_inplace=True
    )
    assert in_place.is_success
    assert served.http.get("/v1/models/notes").json()["root"] == str(folders / "brief")


def test_what_is_refused(served: Server, folders: Path) -> None:
    path = str(folders / "sql")
    for fields, status, said in (
        ({"lora_name": "fixed", "lora_path": path}, 400, "a name of the catalogue"),
        ({"lora_name": "two", "lora_path": path}, 400, "a name of the catalogue"),
        ({"lora_name": "", "lora_path": path}, 400, "must not be empty"),
        ({"lora_name": "a", "lora_path": str(folders / "nowhere")}, 400, "nowhere"),
        ({"lora_name": "a", "lora_path": path, "model": "nobody"}, 404, "does not exist here"),
    ):
        answer = ask(served, "load", **fields)
        assert answer.status_code == status, answer.text
        assert said in answer.json()["error"]["message"]
    assert names(served) == ["one", "fixed", "two"]
    answer = ask(served, "unload", lora_name="fixed")
    assert answer.status_code == 400
    assert "is the catalogue's" in answer.json()["error"]["message"]


def test_one_that_is_gone_is_forgotten_and_its_model_serves(
    served: Server, folders: Path, tmp_path: Path
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    assert ask(served, "load", lora_name="gone", lora_path=str(gone), model="two").is_success
    told(served, "one")
    until(lambda: states(served)["two"] == "unloaded", PATIENCE_S, "the other model to go")
    gone.rmdir()
    assert told(served, "two") == ""
    assert "gone" not in names(served)
