"""How many traces are sent at a time, and what ends one."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import Response

from penstock.server.errors import ApiError
from penstock.server.metrics import Counts
from penstock.server.observer import Observer
from penstock.server.workload import MOST_TRACES, WorkloadReports
from penstock.workload.observation import Observation

TRACE = {"type": "http", "query_string": b"format=jsonl"}


class Client:
    """A client that takes nothing of its answer until it may, or leaves."""

    def __init__(self) -> None:
        self.begun, self.takes, self.left = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.body = b""

    async def send(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.body":
            self.begun.set()
            await self.takes.wait()
            self.body += message["body"]

    async def receive(self) -> dict[str, str]:
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def asks(self, response: Response) -> None:
        await response({**TRACE, "asgi": {}}, self.receive, self.send)


@pytest.mark.parametrize("leaves", [False, True])
def test_a_trace_is_counted_until_it_is_taken(leaves: bool) -> None:
    observer = Observer()
    observer.ring.add(Observation(1.0, 0.1, 0.2, 3, 0, 2, 2, 1, 0, 0))
    reports = WorkloadReports(observer, Counts(), "model")

    async def main() -> None:
        clients = [Client() for _ in range(MOST_TRACES)]
        tasks = [
            asyncio.create_task(client.asks(await reports.report(Request(TRACE))))
            for client in clients
        ]
        for client in clients:
            await client.begun.wait()
        with pytest.raises(ApiError, match="4 traces are being sent") as refused:
            await reports.report(Request(TRACE))
        assert refused.value.status == 429
        (clients[0].left if leaves else clients[0].takes).set()
        await tasks[0]
        assert bool(clients[0].body) != leaves
        again = Client()
        again.takes.set()
        await again.asks(await reports.report(Request(TRACE)))
        assert again.body.count(b"\n") == 1
        for client in clients:
            client.left.set()
        await asyncio.gather(*tasks)

    asyncio.run(asyncio.wait_for(main(), 60))
