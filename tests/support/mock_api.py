"""A server in the test's own event loop that streams, stalls, breaks off or lies as a test says."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from support.stepped_http import Request, Step, chunk, plain, serve, take

HEAD: Final = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)
Body = dict[str, Any]


def event(value: object) -> bytes:
    """A chunk with one event."""
    return chunk(b"data: " + json.dumps(value).encode() + b"\n\n")


def said(text: str, **more: Any) -> bytes:
    """An event with text."""
    return event({"choices": [{"index": 0, "delta": {"content": text, **more}}]})


def end(prompt: int | None, output: int, **details: Any) -> bytes:
    """The events that end an answer; without a count of the prompt there is no usage."""
    last = event({"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]})
    if prompt is not None:
        usage = {"prompt_tokens": prompt, "completion_tokens": output, **details}
        last += event({"choices": [], "usage": usage})
    return last + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"


def words_of(body: Body) -> int:
    """How many words a prompt has."""
    texts = [message["content"] for message in body.get("messages", ())] or [body["prompt"]]
    return sum(len(text.split()) for text in texts)


def usual(body: Body) -> Sequence[Step]:
    """As many tokens as are asked for, at once; a word of the prompt is a token."""
    count = body.get("max_tokens", 3)
    return [HEAD, *[said(" word")] * count, end(words_of(body), count)]


@dataclass
class MockApi:
    """What the server answers, and what it was asked."""

    answer: Callable[[Body], Sequence[Step]] = usual
    models: bytes = plain("200 OK", b'{"data": [{"id": "mock", "max_model_len": 4096}]}')
    metrics: bytes = plain("404 Not Found", b"")
    tokenize: bytes = plain("404 Not Found", b"")
    asked: list[Body] = field(default_factory=list)
    heads: list[str] = field(default_factory=list)
    connections: int = 0
    url: str = ""

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1

        async def answer(request: Request) -> bool:
            self.heads.append(request.head)
            return await take(self._steps(request), writer)

        await serve(reader, writer, answer)

    def _steps(self, request: Request) -> Sequence[Step]:
        if request.path.endswith("/models"):
            return [self.models]
        if request.path == "/metrics":
            return [self.metrics]
        if request.path == "/tokenize":
            return [self.tokenize]
        self.asked.append(request.json)
        return self.answer(self.asked[-1])


@contextlib.asynccontextmanager
async def mock_api(api: MockApi) -> AsyncIterator[MockApi]:
    """Serve ``api`` on a free port."""
    server = await asyncio.start_server(api._serve, "127.0.0.1", 0)
    api.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield api
    finally:
        server.close()


@contextlib.contextmanager
def api_thread(api: MockApi) -> Iterator[MockApi]:
    """Serve ``api`` from a thread of its own."""
    loop = asyncio.new_event_loop()
    ready, done = threading.Event(), asyncio.Event()

    async def main() -> None:
        async with mock_api(api):
            ready.set()
            await done.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(main()))
    thread.start()
    try:
        assert ready.wait(60)
        yield api
    finally:
        loop.call_soon_threadsafe(done.set)
        thread.join()
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
