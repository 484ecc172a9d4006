"""The runner of batches, without a server: the test hands it batches and answers its requests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.batch_files import OWNER, kept, line, lines
from support.waiting import PATIENCE_S

from penstock.server.openai.batches.asking import Answered
from penstock.server.openai.batches.protocol import Batch, FileObject
from penstock.server.openai.batches.runner import BatchRunner
from penstock.server.openai.batches.store import PRIORITY, BatchStore, Owner
from penstock.server.openai.protocol import CompletionRequest


class Asker:
    """Answers each request with its prompt, and with the status that a function chooses.

    The function takes the prompt, and how often it has been asked by now.
    """

    def __init__(self, status: Callable[[str, int], int] = lambda prompt, count: 200) -> None:
        self.asked: list[str] = []
        self.bodies: list[dict[str, Any]] = []
        self.open = self.most_open = 0
        self.permits: asyncio.Semaphore | None = None
        """Each answer waits for one of them; None: no answer waits."""
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
    """The lines of an output file by their ``custom_id``, none of which may be there twice."""
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
    """A request that is retried for ever delays neither the rest of its batch nor other batches."""
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
    """After a restart no answered request is sent again, and half a line is no answer."""
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
