"""Adapters over HTTP: chosen by model, listed, loaded and unloaded as vLLM has it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.http_client import Server, running
from support.http_server import ADMIN_KEY
from support.waiting import PATIENCE_S, until

from penstock.server.metric_families import MetricNames

TELL: dict[str, Any] = {"prompt": "a", "max_tokens": 20, "cache_salt": "tell adapter"}
"""The core answers with the digest of the adapter that it was asked for."""


@pytest.fixture(scope="module")
def served(tokenizer_folder: Path) -> Iterator[Server]:
    with running(tokenizer_folder, 1, max_loras=2) as server:
        yield server


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapters")
    for name in ("sql", "notes"):
        (folder / name).mkdir()
    return folder


def ask(server: Server, what: str, body: object) -> httpx.Response:
    headers = {"authorization": f"Bearer {ADMIN_KEY}"}
    return server.http.post(f"/v1/{what}_lora_adapter", json=body, headers=headers)


def load(server: Server, name: str, path: Path, **more: object) -> httpx.Response:
    return ask(server, "load", {"lora_name": name, "lora_path": str(path), **more})


def told(server: Server, model: str, path: str = "/v1/completions", **more: Any) -> Any:
    response = server.http.post(path, json={**TELL, **more, "model": model})
    return response.json()


def names(server: Server) -> list[str]:
    return [card["id"] for card in server.http.get("/v1/models").json()["data"]]


def test_an_adapter_comes_and_goes(served: Server, folders: Path) -> None:
    assert load(served, "sql", folders / "sql").status_code == 200
    loaded = load(served, "notes", folders / "notes", lora_int_id=2)
    assert loaded.text == "Success: LoRA adapter 'notes' added successfully."
    assert names(served) == ["fake", "sql", "notes"]
    card = served.http.get("/v1/models/sql").json()
    own = served.http.get("/v1/models/fake").json()
    assert (card["parent"], card["root"]) == ("fake", str(folders / "sql"))
    assert (own["parent"], own["root"]) == (None, None)
    answer = told(served, "sql")
    assert (answer["model"], answer["choices"][0]["text"]) == ("sql", "digest of sql")
    assert told(served, "fake")["choices"][0]["text"] == ""
    chat = {"messages": [{"role": "user", "content": "a"}], "prompt": None}
    (choice,) = told(served, "notes", "/v1/chat/completions", **chat)["choices"]
    assert choice["message"]["content"] == "digest of notes"
    keys = [
        served.http.post(
            "/admin/cache/keys?path=/v1/completions",
            json={**TELL, "prompt": "a" * 64, "model": model},
            headers={"authorization": f"Bearer {ADMIN_KEY}"},
        ).json()["keys"]
        for model in ("fake", "sql", "notes")
    ]
    assert len(set(keys)) == 3
    assert ask(served, "unload", {"lora_name": "sql"}).status_code == 200
    assert told(served, "sql")["error"]["code"] == "model_not_found"
    assert names(served) == ["fake", "notes"]
    assert ask(served, "unload", {"lora_name": "notes"}).status_code == 200


@pytest.mark.parametrize(
    ("what", "body", "status", "param"),
    [
        ("load", {"lora_name": "a"}, 400, "lora_path"),
        ("load", {"lora_name": "a", "lora_path": "nowhere"}, 400, "lora_path"),
        ("load", {"lora_name": "", "lora_path": "/"}, 400, "lora_name"),
        ("load", {"lora_name": "fake", "lora_path": "/"}, 400, "lora_name"),
        ("load", {"lora_name": "a", "lora_path": "/", "is_3d": True}, 400, "is_3d"),
        ("unload", {"lora_name": "never"}, 404, "lora_name"),
        ("unload", {}, 400, "lora_name"),
    ],
)
def test_what_is_refused(served: Server, what: str, body: object, status: int, param: str) -> None:
    response = ask(served, what, body)
    assert (response.status_code, response.json()["error"]["param"]) == (status, param)


def test_a_name_is_not_taken_twice(served: Server, folders: Path) -> None:
    assert load(served, "twice", folders / "sql").status_code == 200
    assert "unload it first" in load(served, "twice", folders / "notes").json()["error"]["message"]
    assert told(served, "twice")["choices"][0]["text"] == "digest of sql"
    assert load(served, "twice", folders / "notes", load_inplace=True).status_code == 200
    assert told(served, "twice")["choices"][0]["text"] == "digest of notes"
    assert ask(served, "unload", {"lora_name": "twice"}).status_code == 200


def test_the_next_engine_has_them_again(fresh_server: Server, folders: Path) -> None:
    folder = folders / "gone"
    folder.mkdir()
    assert load(fresh_server, "sql", folders / "sql").status_code == 200
    assert load(fresh_server, "gone", folder).status_code == 200
    folder.rmdir()
    os.kill(fresh_server.engine_pid, signal.SIGKILL)
    until(lambda: fresh_server.metric("engine_restarts_total") == 1, PATIENCE_S, "restarted")
    until(fresh_server.ready, PATIENCE_S, "ready again")
    assert told(fresh_server, "sql")["choices"][0]["text"] == "digest of sql"
    assert names(fresh_server) == ["fake", "sql"]


def test_files_of_an_adapter_may_go_while_the_server_runs(
    tokenizer_folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "sql").mkdir()
    with running(tokenizer_folder, 1, lora_modules=(f"sql={tmp_path / 'sql'}",)) as server:
        (tmp_path / "sql").rmdir()
        os.kill(server.engine_pid, signal.SIGKILL)
        until(lambda: server.metric("engine_restarts_total") == 1, PATIENCE_S, "restarted")
        until(server.ready, PATIENCE_S, "ready again")


def test_metrics_tell_which_adapters_are_in_use(tokenizer_folder: Path, folders: Path) -> None:
    with running(tokenizer_folder, 5, max_loras=2, metric_names=MetricNames.VLLM) as server:
        assert load(server, "sql", folders / "sql").is_success
        text = server.http.get("/metrics").text
        idle = 'vllm:lora_requests_info{engine="0",max_lora="2",model_name="fake",'
        idle += 'running_lora_adapters="",waiting_lora_adapters=""} '
        assert idle in text
        assert float(text.partition(idle)[2].partition("\n")[0]) > 1e9
        body = {"model": "sql", "prompt": "a", "max_tokens": 400, "stream": True}
        with server.http.stream("POST", "/v1/completions", json=body) as answer:
            next(answer.iter_lines())
            assert 'running_lora_adapters="sql"' in server.http.get("/metrics").text
