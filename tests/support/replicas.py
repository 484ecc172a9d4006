"""A router in the test's own event loop, and servers behind it that do what a test says."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs

import httpx

from penstock.engine.prompt_keys import KEY_TOKENS, prompt_keys
from penstock.router.app import build_app
from penstock.router.fleet import Fleet
from penstock.router.options import RouterOptions
from penstock.router.probes import Prober
from penstock.router.replica import Member
from penstock.server.http_server import HttpServer
from penstock.server.open_requests import OpenRequests
from support.stepped_http import Request, Step, plain, serve, take
from support.waiting import PATIENCE_S

ALIVE = plain("200 OK", b'{"status":"alive"}')
ADMIN_KEY = "the-admin-key"


@dataclass
class FakeReplica:
    """``answer`` gives the steps that answer a request."""

    answer: Callable[[Request], Sequence[Step]]
    models: tuple[str, ...] = ("m",)
    aliases: tuple[str, ...] = ()
    """Other names of each."""
    is_ours: bool = False
    ready: bytes = plain("200 OK", b'{"status":"ready"}')
    events: asyncio.Queue[bytes] | None = None
    """Events of its cache, each as JSON, to be sent to who follows; None: it has none."""
    follows: list[str] = field(default_factory=list)
    """The paths by which its events were asked for."""
    asked: list[Request] = field(default_factory=list)
    keys_asked: int = 0
    keyed: list[str] = field(default_factory=list)
    """The endpoints for whose prompts they were."""
    before_keys: Sequence[Step] = ()
    """What comes before the keys of a prompt."""
    url: str = ""
    _server: asyncio.Server | None = None
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)

    async def start(self) -> None:
        port = int(self.url.rpartition(":")[2]) if self.url else 0
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def kill(self) -> None:
        """Cut all connections, and take no more."""
        if self._server is not None:
            self._server.close()
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async def answer(request: Request) -> bool:
            if request.path.startswith("/admin/cache/events"):
                await self._tell(request, reader, writer)
                return False
            return await take(self._steps(request), writer)

        self._writers.add(writer)
        await serve(reader, writer, answer)
        self._writers.discard(writer)

    def _steps(self, request: Request) -> Sequence[Step]:
        path = request.path
        admin = request.headers.get("authorization") == f"Bearer {ADMIN_KEY}"
        if path == "/ready":
            return [self.ready]
        if path == "/health":
            return [ALIVE if self.is_ours else plain("200 OK", b"")]
        if path == "/v1/models":
            aliases = {"aliases": self.aliases} if self.aliases else {}
            cards = [{"id": name, "object": "model", **aliases} for name in self.models]
            return [plain("200 OK", json.dumps({"object": "list", "data": cards}).encode())]
        if path.startswith("/admin/"):
            if not admin or self.events is None:
                return [plain("403 Forbidden", b'{"error":{"message":"no"}}')]
            if path.startswith("/admin/cache/keys"):
                self.keys_asked += 1
                (keyed,) = parse_qs(path.partition("?")[2])["path"]
                self.keyed.append(keyed)
                keys = plain("200 OK", json.dumps(self._keys(request.json)).encode())
                return [*self.before_keys, keys]
            return [plain("200 OK", b"{}")]
        self.asked.append(request)
        return self.answer(request)

    @staticmethod
    def _keys(body: dict[str, Any]) -> dict[str, Any]:
        """The keys of a prompt of token ids."""
        keys = b"".join(prompt_keys(body["prompt"]))
        return {
            "block_size": KEY_TOKENS,
            "prompt_tokens": len(body["prompt"]),
            "keys": base64.b64encode(keys).decode(),
        }

    async def _tell(
        self, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.follows.append(request.path)
        assert self.events is not None
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
        left = asyncio.ensure_future(reader.read())
        while not left.done():
            told = asyncio.ensure_future(self.events.get())
            await asyncio.wait({left, told}, return_when=asyncio.FIRST_COMPLETED)
            if not told.done():
                told.cancel()
            elif event := told.result():
                writer.write(b"data: " + event + b"\n\n")
                await writer.drain()
            else:  # the test breaks the connection
                left.cancel()
                return


def cache_event(
    epoch: str, since: int | None, until: int, added: Sequence[bytes], removed: Sequence[bytes] = ()
) -> bytes:
    """An event of a cache, as JSON."""
    fields = {
        "epoch": epoch,
        "since": since,
        "until": until,
        "added": base64.b64encode(b"".join(added)).decode(),
        "removed": base64.b64encode(b"".join(removed)).decode(),
    }
    return json.dumps(fields).encode()


def texts(response: httpx.Response) -> str:
    """What a stream says; it must be whole."""
    lines = [line[6:] for line in response.text.splitlines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]", response.text
    found = ""
    for line in lines[:-1]:
        for choice in json.loads(line)["choices"]:
            found += choice["delta"].get("content", "")
    return found


@dataclass
class Routed:
    """A router that runs."""

    url: str
    fleet: Fleet
    probers: list[Prober]
    requests: OpenRequests
    http: httpx.AsyncClient

    async def look(self) -> None:
        """Probe all replicas once."""
        for prober in self.probers:
            await prober.look()

    async def complete(self, **body: Any) -> httpx.Response:
        return await self.http.post("/v1/completions", json={"model": "m", **body})

    async def metric(self, name: str, url: str) -> float:
        for line in (await self.http.get("/metrics")).text.splitlines():
            sample = line.rpartition(" ")[0].replace("_total{", "{")
            if sample == f'penstock_router:{name}{{replica="{url}"}}':
                return float(line.rpartition(" ")[2])
        raise AssertionError(f"no metric {name} of {url}")


@contextlib.asynccontextmanager
async def routing(
    *replicas: FakeReplica, admin_key: str | None = None, **options: Any
) -> AsyncIterator[Routed]:
    """Start the replicas, but for those that have a URL, and a router before them; nothing is
    probed by itself."""
    for replica in replicas:
        if not replica.url:
            await replica.start()
    fleet = Fleet(RouterOptions(**options))
    members = [Member(each.url, admin_key) for each in replicas]
    probers = [Prober(fleet, fleet.add(member)) for member in members]
    requests = OpenRequests()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        http = HttpServer(build_app(fleet, requests), listener, 5.0, lambda: None)
        serving = asyncio.ensure_future(http.serve([listener]))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        async with httpx.AsyncClient(base_url=url, timeout=PATIENCE_S, trust_env=False) as client:
            routed = Routed(url, fleet, probers, requests, client)
            await routed.look()
            try:
                yield routed
            finally:
                http.should_exit = True
                await serving
                for prober in probers:
                    prober.close()
                for replica in replicas:
                    replica.kill()
                fleet.close()
