"""A server that answers as a script says, at an even pace: what clients are measured against.

It speaks just enough of OpenAI's API for load generators, in one process of one thread, and does
as little as it can for each token: ``python benchmarks/server/mock_server.py --port 8099``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
from dataclasses import dataclass

import httptools


@dataclass(frozen=True)
class Pace:
    """When tokens come: the first after ``ttft_s`` and up to ``spread_s`` more, drawn evenly, the
    others ``itl_s`` apart."""

    ttft_s: float
    spread_s: float
    itl_s: float
    default_tokens: int


class Answering(asyncio.Protocol):
    """One connection. Every request is answered by so many tokens as ``max_tokens`` says."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._parser = httptools.HttpRequestParser(self)
        self._body = bytearray()
        self._url = b""
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._loop = asyncio.get_running_loop()

    def connection_lost(self, error: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_begin(self) -> None:
        self._body.clear()

    def on_url(self, url: bytes) -> None:
        self._url = url

    def on_body(self, data: bytes) -> None:
        self._body += data

    def on_message_complete(self) -> None:
        if self._url.endswith(b"/models"):
            self._whole(b'{"object": "list", "data": [{"id": "mock", "object": "model"}]}')
        elif self._url.endswith(b"completions"):
            self._stream(json.loads(self._body))
        elif self._url == b"/health":
            self._whole(b"{}")
        else:
            self._whole(b"{}", b"404 Not Found")

    def _whole(self, body: bytes, status: bytes = b"200 OK") -> None:
        self._transport.write(
            b"HTTP/1.1 %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
            % (status, len(body), body)
        )

    def _stream(self, asked: dict[str, object]) -> None:
        tokens = asked.get("max_completion_tokens") or asked.get("max_tokens")
        self._left = tokens if isinstance(tokens, int) else self._pace.default_tokens
        self._made = self._left
        chat = b"chat" in self._url
        text = b'"delta": {"content": " word"}' if chat else b'"text": " word"'
        kind = b"chat.completion.chunk" if chat else b"text_completion"
        head = b'data: {"id": "1", "object": "%b", "created": 1, "model": "mock", ' % kind
        self._piece = _chunk(
            head + b'"choices": [{"index": 0, %b, "finish_reason": null}]}\n\n' % text
        )
        ended = b'"delta": {}' if chat else b'"text": ""'
        said = json.dumps(asked.get("messages") or asked.get("prompt")).count(" ")
        usage = b'{"prompt_tokens": %d, "completion_tokens": %d, "total_tokens": %d}' % (
            said,
            self._made,
            said + self._made,
        )
        self._last = (
            _chunk(head + b'"choices": [{"index": 0, %b, "finish_reason": "length"}]}\n\n' % ended)
            + _chunk(head + b'"choices": [], "usage": %b}\n\n' % usage)
            + _chunk(b"data: [DONE]\n\n")
            + b"0\r\n\r\n"
        )
        self._transport.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        self._next = self._loop.time() + self._pace.ttft_s + random.random() * self._pace.spread_s
        self._timer = self._loop.call_at(self._next, self._token)

    def _token(self) -> None:
        self._left -= 1
        if not self._left:
            self._transport.write(self._piece + self._last)
            return
        self._transport.write(self._piece)
        self._next += self._pace.itl_s
        self._timer = self._loop.call_at(self._next, self._token)


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


async def serve(port: int, pace: Pace) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Answering(pace), "127.0.0.1", port, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one and prints it")
    parser.add_argument("--ttft-ms", type=float, default=50)
    parser.add_argument("--spread-ms", type=float, default=0)
    parser.add_argument("--itl-ms", type=float, default=50)
    parser.add_argument("--tokens", type=int, default=64, help="where a request names no number")
    args = parser.parse_args()
    pace = Pace(args.ttft_ms / 1e3, args.spread_ms / 1e3, args.itl_ms / 1e3, args.tokens)
    asyncio.run(serve(args.port, pace))
    return 0


if __name__ == "__main__":
    sys.exit(main())
