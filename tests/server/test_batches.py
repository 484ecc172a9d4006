"""Files and batches: what is uploaded, run, cancelled and answered, also across restarts."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import openai
import pytest
from support.fake_core import completion
from support.http_client import Server, running
from support.waiting import PATIENCE_S, until

from penstock.errors import ConfigError
from penstock.server.errors import ApiError
from penstock.server.openai.batches.asking import Answered
from penstock.server.openai.batches.form import read_form
from penstock.server.openai.batches.input import body_at, read_lines, window_seconds
from penstock.server.openai.batches.protocol import ENDED, Batch, FileObject
from penstock.server.openai.batches.runner import BatchRunner
from penstock.server.openai.batches.store import PRIORITY, BatchStore, LineFile, Owner
from penstock.server.openai.protocol import CompletionRequest

ENDPOINT = "/v1/completions"


def line(name: str, url: str = ENDPOINT, **fields: Any) -> dict[str, Any]:
    body = {"prompt": f"SAY<<{name}>>", "max_tokens": 30, **fields}
    return {"custom_id": name, "method": "POST", "url": url, "body": body}


def lines(*given: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(each).encode() + b"\n" for each in given)


# The runner, asked by nobody but the test.


class Asker:
    """Answers with the prompt, as the function says for it."""

    def __init__(self, status: Callable[[str, int], int] = lambda prompt, count: 200) -> None:
        self.asked: list[str] = []
        self.bodies: list[dict[str, Any]] = []
        self.open = self.most_open = 0
        self.permits: asyncio.Semaphore | None = None
        """One is taken for each answer, where there are any."""
        self._status = status

    async def ask(self, owner: Owner, path: str, body: bytes) -> Answered:
        given = json.loads(body)
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            if self.permits is not None:
                await self.permits.acquire()
            await asyncio.sleep(0)
        finally:
            self.open -= 1
        self.asked.append(given["prompt"])
        self.bodies.append(given)
        status = self._status(given["prompt"], self.asked.count(given["prompt"]))
        return Answered(status, "req-1", json.dumps({"prompt": given["prompt"]}).encode())


OWNER = Owner("key", "someone", 2.0)


def kept(store: BatchStore, data: bytes) -> Batch:
    now = int(time.time())
    file = FileObject(id="file-in", bytes=len(data), created_at=now, filename="in", purpose="batch")
    store.data(file.id).write_bytes(data)
    store.announce(file, OWNER)
    return Batch(
        id="batch_1",
        endpoint=ENDPOINT,
        input_file_id=file.id,
        completion_window="24h",
        status="validating",
        created_at=now,
        expires_at=now + 100,
    )


async def ended(store: BatchStore, name: str = "batch_1") -> Batch:
    async with asyncio.timeout(20):
        while store.batches[name].batch.status not in (
            "completed",
            "failed",
            "expired",
            "cancelled",
        ):
            await asyncio.sleep(0.001)
    return store.batches[name].batch


def answers(store: BatchStore, file_id: str | None) -> dict[str, Any]:
    """The lines of a file by the ids of their requests, each of which is there once."""
    if file_id is None:
        return {}
    found = [json.loads(text) for text in store.data(file_id).read_text().splitlines()]
    assert len({each["custom_id"] for each in found}) == len(found)
    assert len({each["id"] for each in found}) == len(found)
    return {each["custom_id"]: each for each in found}


def test_every_request_has_one_line(tmp_path: Path) -> None:
    asker = Asker(lambda prompt, _: 404 if "3" in prompt else 200)
    given = [line(f"r{i}", priority=5 if i else 2000) for i in range(9)]

    async def main() -> None:
        store = BatchStore(tmp_path)
        runner = BatchRunner(store, asker, 4)
        runner.add(kept(store, lines(*given)), OWNER)
        batch = await ended(store)
        await runner.aclose()
        assert batch.status == "completed"
        counts = msgspec.to_builtins(batch.request_counts)
        assert counts == {"total": 9, "completed": 8, "failed": 1}
        good, bad = answers(store, batch.output_file_id), answers(store, batch.error_file_id)
        assert set(good) | set(bad) == {f"r{i}" for i in range(9)}
        assert set(bad) == {"r3"}
        assert bad["r3"]["response"]["status_code"] == 404
        assert good["r1"]["response"]["body"] == {"prompt": "SAY<<r1>>"}
        assert good["r1"]["response"]["request_id"] == "req-1"
        assert store.files[batch.output_file_id or ""].owner == OWNER
        store.close()

    asyncio.run(main())
    assert asker.most_open == 4
    assert asker.bodies == [each["body"] for each in given], "bodies are as they were sent"


def test_requests_are_behind_live_ones() -> None:
    for asked, got in ((None, PRIORITY), (-5, PRIORITY), (5, PRIORITY), (2000, 2000)):
        body = msgspec.convert({"model": "", "prompt": "", "priority": asked}, CompletionRequest)
        assert OWNER.caller.options(body).priority == got


def test_what_the_server_cannot_do_now_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.server.openai.batches.runner._PAUSE_S", 0.0)

    def status(prompt: str, count: int) -> int:
        if "busy" in prompt:
            return (429, 503, 503, 503, 200)[min(count, 5) - 1]
        return 500 if "broken" in prompt or count == 1 else 200

    asker = Asker(status)

    async def main() -> None:
        store = BatchStore(tmp_path)
        runner = BatchRunner(store, asker, 2)
        runner.add(kept(store, lines(line("busy"), line("broken"), line("once"))), OWNER)
        batch = await ended(store)
        assert set(answers(store, batch.output_file_id)) == {"busy", "once"}
        assert set(answers(store, batch.error_file_id)) == {"broken"}
        store.close()

    asyncio.run(main())
    assert asker.asked.count("SAY<<broken>>") == 3


def test_what_waits_keeps_nobody_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither requests behind it in its batch nor other batches, although it never ends."""
    monkeypatch.setattr("penstock.server.openai.batches.runner._PAUSE_S", 0.001)
    asker = Asker(lambda prompt, _: 503 if "away" in prompt else 200)

    async def main() -> None:
        store = BatchStore(tmp_path)
        runner = BatchRunner(store, asker, 2)
        first = kept(store, lines(*(line(f"away{i}") for i in range(4)), line("here")))
        runner.add(first, OWNER)
        async with asyncio.timeout(PATIENCE_S):
            while store.batches["batch_1"].batch.request_counts.completed < 1:
                await asyncio.sleep(0.001)
        other = FileObject(id="file-2", bytes=1, created_at=0, filename="in", purpose="batch")
        store.data(other.id).write_bytes(lines(*(line(f"r{i}") for i in range(5))))
        store.announce(other, OWNER)
        runner.add(msgspec.structs.replace(first, id="batch_2", input_file_id="file-2"), OWNER)
        batch = await ended(store, "batch_2")
        assert batch.request_counts.completed == 5
        assert store.batches["batch_1"].batch.status == "in_progress"
        await runner.aclose()
        store.close()

    asyncio.run(main())
    assert asker.most_open <= 2


def test_a_batch_goes_on_where_it_was(tmp_path: Path) -> None:
    """What is answered is not asked again, and half a line is no answer."""
    given = [line(f"r{i}") for i in range(30)]
    asked: list[str] = []

    async def life(stop_after: int | None) -> Batch:
        store = BatchStore(tmp_path)
        asker = Asker()
        runner = BatchRunner(store, asker, 3)
        if "batch_1" in store.batches:
            runner.start()
        else:
            runner.add(kept(store, lines(*given)), OWNER)
        if stop_after is None:
            await ended(store)
        else:
            while len(asker.asked) < stop_after:
                await asyncio.sleep(0)
        await runner.aclose()
        asked.extend(asker.asked)
        batch = store.batches["batch_1"].batch
        store.close()
        return batch

    for _ in range(3):
        assert asyncio.run(life(5)).status == "in_progress"
        path = tmp_path / "files" / "file-batch_1-output.data"
        with path.open("ab") as file:
            file.write(b'{"id":"torn","custom_id":"r2')
    batch = asyncio.run(life(None))
    assert batch.status == "completed"
    assert batch.request_counts.completed == 30
    assert len(asked) <= 30 + 3 * 3, "those that were open are asked again"
    store = BatchStore(tmp_path)
    assert set(answers(store, batch.output_file_id)) == {f"r{i}" for i in range(30)}
    store.close()


def test_cancelling_and_expiring(tmp_path: Path) -> None:
    async def main(expires: bool, folder: Path) -> tuple[Batch, dict[str, Any], dict[str, Any]]:
        store = BatchStore(folder)
        asker = Asker()
        batch = kept(store, lines(*(line(f"r{i}") for i in range(4))))
        now = batch.expires_at - (0.1 if expires else 100)
        runner = BatchRunner(store, asker, 1, lambda: now)
        asker.permits = asyncio.Semaphore(0)
        runner.add(batch, OWNER)
        if not expires:
            asker.permits.release()
            while not asker.asked:
                await asyncio.sleep(0)
            runner.cancel(batch.id)
            assert store.batches[batch.id].batch.status == "cancelling"
        found = await ended(store)
        await runner.aclose()
        files = answers(store, found.output_file_id), answers(store, found.error_file_id)
        store.close()
        return found, *files

    batch, good, bad = asyncio.run(main(False, tmp_path / "cancelled"))
    # The next one may have begun before it was cancelled.
    assert (batch.status, bad) == ("cancelled", {})
    assert {"r0"} <= set(good) <= {"r0", "r1"}
    assert batch.cancelling_at is not None
    assert batch.cancelled_at is not None
    batch, good, bad = asyncio.run(main(True, tmp_path / "expired"))
    assert batch.status == "expired"
    assert {each["error"]["code"] for each in bad.values()} == {"batch_expired"}
    assert (good, set(bad)) == ({}, {"r0", "r1", "r2", "r3"})
    assert batch.request_counts.failed == 4


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"\n\n", "no requests"),
        (b"{", "line 1 is no request"),
        (b'{"custom_id": "a"}\n', "missing required field"),
        (lines({**line("a"), "method": "GET"}), "method"),
        (lines({**line("a"), "extra": 1}), "extra"),
        (lines(line("a"), line("b"), line("a")), "line 3: custom_id 'a' is that of line 1, too"),
        (lines(line("")), "1 to 256"),
        (lines(line("a", "/v1/embeddings")), "url is not /v1/completions"),
        (lines(line("a", stream=True)), "not streamed"),
        (lines(line("a", priority="high")), "priority"),
        (b"\xff\xfe\n", "line 1 is no request: it is text in UTF-16"),
        (json.dumps([line("a")]).encode(), "each line is one whole object"),
        (lines(line("a")).replace(b'"max_tokens"', b'"a": 1, "a"'), "'a' is there twice"),
        (lines(line("a")).replace(b'"url"', b'"method": "POST", "url"'), "'method' is there twice"),
        (b"[" * 100_000, "nested too deeply"),
    ],
)
def test_what_is_wrong_with_an_input_file(tmp_path: Path, data: bytes, said: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(data)
    _, faults = read_lines(path, ENDPOINT)
    assert said in faults[0].message


def test_requests_are_read_where_they_are(tmp_path: Path) -> None:
    """A byte order mark, ends of lines of Windows and blank lines say nothing."""
    given = [json.dumps(line(name, prompt="\u00e9" * 3)).encode() for name in ("a", "b", "c")]
    path = tmp_path / "file"
    path.write_bytes(b"\xef\xbb\xbf" + given[0] + b"\r\n\r\n" + given[1] + b"\n" + given[2])
    places, faults = read_lines(path, ENDPOINT)
    assert (faults, [place.custom_id for place in places]) == ([], ["a", "b", "c"])
    for place, data in zip(places, given, strict=True):
        assert json.loads(body_at(path, place)) == json.loads(data)["body"]
    path.write_bytes(b"{}")
    with pytest.raises(OSError, match="has changed"):
        body_at(path, places[0])


def test_so_many_faults_are_told(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"{\n" * 1000)
    assert len(read_lines(path, ENDPOINT)[1]) == 100


def test_windows() -> None:
    assert [window_seconds(text) for text in ("24h", "90m", "30s")] == [86_400, 5400, 30]
    assert window_seconds("2d") == 172_800
    for text in ("", "h", "0h", "24", "15d", "-1h", "1.5h", "24 h", "24h\n"):
        assert window_seconds(text) is None


def test_lines_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"torn" * 700_000)
    for turn in range(2):
        file = LineFile(path)
        assert list(file.lines()) == [b"x" * 1_500_000, b"", b"y"][: 3 * turn]
        if not turn:
            for text in (b"x" * 1_500_000, b"", b"y"):
                file.add(text)
        file.close()


def test_a_folder_has_one_user_and_whole_documents(tmp_path: Path) -> None:
    store = BatchStore(tmp_path)
    with pytest.raises(ConfigError, match="in use by another server"):
        BatchStore(tmp_path)
    kept(store, b"x")
    (tmp_path / "files" / "file-orphan.data").write_bytes(b"of an upload that was cut short")
    store.close()
    again = BatchStore(tmp_path)
    assert list(again.files) == ["file-in"]
    assert sorted(path.name for path in (tmp_path / "files").iterdir()) == [
        "file-in.data",
        "file-in.json",
    ]
    again.delete_file("file-in")
    assert list((tmp_path / "files").iterdir()) == []
    again.close()
    (tmp_path / "batches" / "b.json").write_text("{")
    with pytest.raises(ConfigError, match="cannot be read"):
        BatchStore(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="--batch-dir"):
        BatchStore(tmp_path / "file")


def form(*parts: tuple[str, bytes], end: bytes = b"--b--\r\n") -> bytes:
    made = b""
    for head, data in parts:
        made += b"--b\r\nContent-Disposition: form-data; " + head.encode() + b"\r\n\r\n"
        made += data + b"\r\n"
    return made + end


def test_a_form() -> None:
    data = b"\r\n--bc\r\n\x00\xff--b"
    parts = read_form(
        'multipart/form-data; boundary="b"',
        form(('name="file"; filename="a b.jsonl"', data), ("name=purpose", b"batch")),
    )
    assert parts["file"].data == data
    assert parts["file"].filename == "a b.jsonl"
    assert parts["purpose"].data == b"batch"


@pytest.mark.parametrize(
    ("kind", "body", "said"),
    [
        ("application/json", b"{}", "multipart/form-data"),
        ("", b"", "multipart/form-data"),
        ("multipart/form-data", form(), "boundary"),
        ("multipart/form-data; boundary=b", b"", "end"),
        ("multipart/form-data; boundary=b", form(("name=a", b"x"), end=b""), "end"),
        ("multipart/form-data; boundary=b", b"--b\r\nno header\r\n--b--", "no header"),
        ("multipart/form-data; boundary=b", b"--b\r\nA: b\r\n\r\nx\r\n--b--", "no name"),
        ("multipart/form-data; boundary=b", form(("name=a", b""), ("name=a", b"")), "twice"),
        ("multipart/form-data; boundary=b", form(*(20 * [("name=a", b"")])), "16 parts"),
    ],
)
def test_malformed_forms(kind: str, body: bytes, said: str) -> None:
    with pytest.raises(ApiError, match=said):
        read_form(kind, body)


# A server of its own.

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
