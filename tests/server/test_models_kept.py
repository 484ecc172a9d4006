"""What a server of several models keeps: responses and batches, whichever model is loaded."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.fake_core import completion
from support.http_client import Server, running
from support.waiting import PATIENCE_S, until

from penstock.server.openai.batches.protocol import ENDED

pytestmark = pytest.mark.slow  # engines are started and ended

CATALOGUE = """
[[models]]
name = "one"
model = "{folder}"
memory = 600_000_000
[[models]]
name = "two"
model = "{folder}"
memory = 600_000_000
"""
"""Two models, of which one alone fits."""


@pytest.fixture(scope="module")
def catalogue(tokenizer_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "models.toml"
    path.write_text(CATALOGUE.format(folder=tokenizer_folder))
    return path


@pytest.fixture(scope="module")
def served(
    tokenizer_folder: Path, catalogue: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    folder = str(tmp_path_factory.mktemp("batches"))
    with running(tokenizer_folder, 0, models=str(catalogue), batch_dir=folder) as server:
        yield server


def answered(served: Server, model: str, **fields: Any) -> Any:
    answer = served.post("/v1/responses", {"model": model, "max_output_tokens": 4, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_responses_outlive_their_model(served: Server) -> None:
    first = answered(served, "one", input="ab")
    second = answered(served, "two", input="cd", previous_response_id=first["id"])
    for each in (first, second):
        kept = served.http.get(f"/v1/responses/{each['id']}")
        assert kept.status_code == 200
        assert kept.json() == each
    items = served.http.get(f"/v1/responses/{second['id']}/input_items?order=asc").json()["data"]
    assert [item["role"] for item in items] == ["user", "assistant", "user"]
    assert served.http.delete(f"/v1/responses/{first['id']}").json()["deleted"] is True
    gone = served.http.get(f"/v1/responses/{first['id']}")
    assert gone.status_code == 404
    assert "no response" in gone.json()["error"]["message"]


def line(name: str, model: str) -> dict[str, Any]:
    body = {"model": model, "prompt": f"Number {name}", "max_tokens": 6}
    return {"custom_id": name, "method": "POST", "url": "/v1/completions", "body": body}


def test_a_batch_asks_several_models(served: Server) -> None:
    api = served.client()
    models = {f"r{i}": "one" if i < 6 else "two" for i in range(12)} | {"bad": "nobody"}
    given = b"".join(json.dumps(line(*each)).encode() + b"\n" for each in models.items())
    file = api.files.create(file=("requests.jsonl", given), purpose="batch")
    batch = api.batches.create(
        input_file_id=file.id, endpoint="/v1/completions", completion_window="24h"
    )
    until(lambda: api.batches.retrieve(batch.id).status in ENDED, PATIENCE_S, "the batch's end")
    done = api.batches.retrieve(batch.id)
    assert done.status == "completed"
    found = {}
    for text in api.files.content(str(done.output_file_id)).text.splitlines():
        each = json.loads(text)
        body = each["response"]["body"]
        found[each["custom_id"]] = body["model"], body["choices"][0]["text"]
    expected = {
        name: (model, bytes(completion(f"Number {name}".encode(), 6)).decode())
        for name, model in models.items()
        if name != "bad"
    }
    assert found == expected
    (fault,) = map(json.loads, api.files.content(str(done.error_file_id)).text.splitlines())
    assert fault["response"]["status_code"] == 404
    assert "does not exist here" in fault["response"]["body"]["error"]["message"]
    assert served.http.get("/v1/batches/batch_x").status_code == 404
