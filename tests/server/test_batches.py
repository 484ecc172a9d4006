"""Files and batches over HTTP: uploaded, run, cancelled and answered, also across restarts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from support.batch_files import ENDPOINT, line, lines
from support.fake_core import completion
from support.http_client import Server, running
from support.waiting import PATIENCE_S, until

from penstock.server.openai.batches.protocol import ENDED

FOLDER = "batches"
USER, OTHER = "user-key", "other-key"


@pytest.fixture(scope="module")
def batching(tokenizer_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp(FOLDER)
    with running(tokenizer_folder, 1, batch_dir=str(folder), api_keys=f"{USER},{OTHER}") as server:
        yield server


def client(server: Server, key: str = USER) -> openai.OpenAI:
    http: Any = server.http
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0, http_client=http)


def done(api: openai.OpenAI, name: str) -> Any:
    """The batch once it has ended."""
    until(lambda: api.batches.retrieve(name).status in ENDED, PATIENCE_S, "the batch's end")
    return api.batches.retrieve(name)


def test_the_openai_client(batching: Server) -> None:
    api = client(batching)
    given = [line(f"r{i}", prompt=f"Number {i}") for i in range(20)] + [line("bad", max_tokens=-1)]
    file = api.files.create(file=("requests.jsonl", lines(*given)), purpose="batch")
    assert (file.filename, file.purpose) == ("requests.jsonl", "batch")
    content = api.files.content(file.id)
    assert content.content == lines(*given)
    key = {"authorization": f"Bearer {USER}"}
    documented = batching.http.get("/openapi.json", headers=key).json()["paths"]
    answers = documented["/v1/files/{file_id}/content"]["get"]["responses"]["200"]["content"]
    assert list(answers) == [content.response.headers["content-type"]]
    batch = api.batches.create(
        input_file_id=file.id,
        endpoint="/v1/completions",
        completion_window="24h",
        metadata={"a": "b"},
    )
    assert batch.metadata == {"a": "b"}
    batch = done(api, batch.id)
    assert batch.status == "completed"
    assert (batch.request_counts.completed, batch.request_counts.failed) == (20, 1)
    found = {}
    for text in api.files.content(batch.output_file_id).text.splitlines():
        each = json.loads(text)
        found[each["custom_id"]] = each["response"]["body"]["choices"][0]["text"]
    assert found == {
        f"r{i}": bytes(completion(f"Number {i}".encode(), 30)).decode() for i in range(20)
    }
    (fault,) = map(json.loads, api.files.content(batch.error_file_id).text.splitlines())
    assert fault["response"]["status_code"] == 400
    assert fault["response"]["body"]["error"]["param"] == "max_tokens"
    assert batch.id in [each.id for each in api.batches.list()]
    names = [each.id for each in api.files.list(purpose="batch_output")]
    assert {batch.output_file_id, batch.error_file_id} <= set(names)
    assert api.files.delete(file.id).deleted
    with pytest.raises(openai.NotFoundError):
        api.files.retrieve(file.id)


def test_nobody_finds_what_others_have_sent(batching: Server) -> None:
    api, other = client(batching), client(batching, OTHER)
    file = api.files.create(file=lines(line("a")), purpose="batch")
    with pytest.raises(openai.NotFoundError):
        other.files.content(file.id)
    assert file.id not in [each.id for each in other.files.list()]
    with pytest.raises(openai.BadRequestError, match="no file"):
        other.batches.create(
            input_file_id=file.id, endpoint="/v1/completions", completion_window="24h"
        )
    batch = api.batches.create(
        input_file_id=file.id, endpoint="/v1/completions", completion_window="24h"
    )
    with pytest.raises(openai.NotFoundError):
        other.batches.cancel(batch.id)
    done(api, batch.id)


def test_bad_batches(batching: Server) -> None:
    api = client(batching)
    file = api.files.create(file=lines(line("a")), purpose="batch")
    good = {"input_file_id": file.id, "endpoint": ENDPOINT, "completion_window": "24h"}
    headers = {"authorization": f"Bearer {USER}"}
    for changed, param in (
        ({"input_file_id": "file-x"}, "input_file_id"),
        ({"endpoint": "/v1/messages"}, "endpoint"),
        ({"completion_window": "soon"}, "completion_window"),
        ({"metadata": {"a": 1}}, "metadata"),
        ({"colour": 1}, "colour"),
    ):
        answer = batching.http.post("/v1/batches", json={**good, **changed}, headers=headers)
        assert answer.status_code == 400
        assert answer.json()["error"]["param"].startswith(param)
    for query in ("limit=0", "limit=x", "limit=101", "order=up", "after=batch_x"):
        assert batching.http.get(f"/v1/batches?{query}", headers=headers).status_code == 400
    with pytest.raises(openai.BadRequestError, match="purpose must be batch"):
        api.files.create(file=b"x", purpose="fine-tune")
    with pytest.raises(openai.APIStatusError, match="split the file") as refused:
        api.files.create(file=b" " * (33 << 20), purpose="batch")
    assert refused.value.status_code == 413
    with pytest.raises(openai.BadRequestError, match="empty"):
        api.files.create(file=b"  ", purpose="batch")
    wrong = api.files.create(file=b"{", purpose="batch")
    batch = api.batches.create(
        input_file_id=wrong.id, endpoint="/v1/completions", completion_window="24h"
    )
    batch = done(api, batch.id)
    assert batch.status == "failed"
    assert "line 1" in batch.errors.data[0].message
    with pytest.raises(openai.ConflictError, match="failed"):
        api.batches.cancel(batch.id)


def test_a_server_that_keeps_nothing_says_so(server: Server) -> None:
    for path in ("/v1/files", "/v1/batches", "/v1/files/file-a", "/v1/batches/b"):
        answer = server.http.get(path)
        assert answer.status_code == 400
        assert "--batch-dir" in answer.json()["error"]["message"]


@pytest.mark.slow
def test_killed_in_the_middle(tokenizer_folder: Path, tmp_path: Path) -> None:
    """No request is twice in the output, and none is lost."""
    given = [line(f"r{i}", prompt=f"Number {i}", max_tokens=1 + 4 * i) for i in range(60)]
    with running(tokenizer_folder, 10, batch_dir=str(tmp_path)) as server:
        api = server.client()
        file = api.files.create(file=lines(*given), purpose="batch")
        batch = api.batches.create(
            input_file_id=file.id, endpoint="/v1/completions", completion_window="24h"
        )
        until(
            lambda: api.batches.retrieve(batch.id).request_counts.completed > 5,
            PATIENCE_S,
            "some answers",
        )
        server.process.kill()
        server.process.wait(10)
    written = (tmp_path / "files" / f"file-{batch.id}-output.data").read_text().count("\n")
    assert 5 < written < 60
    with running(tokenizer_folder, 0, batch_dir=str(tmp_path)) as server:
        api = server.client()
        batch = done(api, batch.id)
        assert batch.status == "completed"
        found = [
            json.loads(text)["custom_id"]
            for text in api.files.content(batch.output_file_id).text.splitlines()
        ]
    assert sorted(found) == sorted(each["custom_id"] for each in given)
