"""What an administrator may ask of a running server: ``/admin/...``, with the admin key."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from penstock.errors import PenstockError
from penstock.server import logs
from penstock.server.open_requests import OpenRequests
from penstock.server.openai.errors import ApiError, aborted
from penstock.server.supervisor import Supervisor

ENGINE_TIMEOUT_S = 10.0
MAX_BODY_BYTES = 4096

_log = logging.getLogger("penstock.admin")

T = TypeVar("T")
Handler = Callable[[Request], Awaitable[Response]]


class AbortBody(msgspec.Struct, forbid_unknown_fields=True):
    """Which requests to stop: by ``x-request-id`` or by the id of their answer; or all."""

    request_id: str | None = None
    all: bool = False


class LogLevelBody(msgspec.Struct, forbid_unknown_fields=True):
    level: str


class Admin:
    """The handlers. Who may call them is decided before."""

    def __init__(self, engine: Supervisor, requests: OpenRequests) -> None:
        self._engine = engine
        self._requests = requests

    def routes(self) -> list[tuple[str, str, Handler]]:
        """(method, name under /admin/, handler) of each."""
        return [
            ("GET", "status", self.status),
            ("POST", "abort", self.abort),
            ("POST", "drain", self.drain),
            ("POST", "resume", self.resume),
            ("POST", "cache/clear", self.clear_cache),
            ("POST", "check", self.check),
            ("POST", "log-level", self.log_level),
        ]

    async def status(self, request: Request) -> Response:
        """The engine and the requests that are open."""
        engine = self._engine
        return _json(
            {
                "engine": {
                    "pid": engine.llm.process.pid,
                    "trouble": engine.trouble,
                    "restarts": engine.restarts,
                    "open_sequences": engine.llm.num_sequences,
                    "max_sequences": engine.max_sequences,
                },
                "draining": self._requests.draining,
                "requests": [
                    {
                        "request_id": each.id,
                        "client": each.client,
                        "path": each.path,
                        "key": each.key,
                        "seconds": each.seconds,
                    }
                    for each in self._requests
                ],
            }
        )

    async def abort(self, request: Request) -> Response:
        """Stop requests; their clients are told."""
        body = await _body(request, AbortBody)
        if body.all == (body.request_id is not None):
            raise ApiError(400, "give either request_id or all", param="request_id")
        if body.request_id is None:
            ended = self._requests.end_all(aborted())
        else:
            ended = self._requests.end(body.request_id, aborted())
            ended = ended or self._engine.llm.abort_matching(body.request_id)
        _log.warning("aborted %d requests (%s)", ended, body.request_id or "all")
        return _json({"aborted": ended})

    async def drain(self, request: Request) -> Response:
        """Take no more work; what is open goes on."""
        self._requests.draining = "the server is being drained by its administrator"
        _log.warning("draining: %d requests are open", len(self._requests))
        return _json({"draining": True, "open": len(self._requests)})

    async def resume(self, request: Request) -> Response:
        """Take work again after a drain."""
        if self._requests.stopping:
            raise ApiError(409, "the server is shutting down", code="shutting_down")
        self._requests.draining = None
        _log.warning("taking work again")
        return _json({"draining": False})

    async def clear_cache(self, request: Request) -> Response:
        """Forget every cached prefix."""
        await _of_engine(self._engine.llm.reset_prefix_cache())
        _log.warning("the prefix cache was cleared")
        return _json({"cleared": True})

    async def check(self, request: Request) -> Response:
        """Compare the engine's books: queues, sequences, blocks."""
        try:
            await _of_engine(self._engine.llm.check_integrity())
        except PenstockError as error:
            if isinstance(error, ApiError):
                raise
            _log.error("%s", error)
            return _json({"ok": False, "error": str(error)})
        return _json({"ok": True})

    async def log_level(self, request: Request) -> Response:
        """Set the level of the log until the server ends."""
        body = await _body(request, LogLevelBody)
        if body.level not in logs.LEVELS:
            levels = ", ".join(logs.LEVELS)
            raise ApiError(400, f"level must be one of {levels}", param="level")
        logs.set_level(body.level)
        _log.warning("the log's level is now %s", body.level)
        return _json({"level": body.level})


async def _of_engine(asked: Awaitable[T]) -> T:
    try:
        async with asyncio.timeout(ENGINE_TIMEOUT_S):
            return await asked
    except TimeoutError:
        raise ApiError(
            504,
            f"the engine did not answer within {ENGINE_TIMEOUT_S:g} s",
            type="server_error",
            code="engine_silent",
        ) from None


async def _body(request: Request, kind: type[T]) -> T:
    """The body as JSON, {} where there is none. Raises ApiError."""
    data = bytearray()
    async with asyncio.timeout(ENGINE_TIMEOUT_S):
        async for chunk in request.stream():
            data += chunk
            if len(data) > MAX_BODY_BYTES:
                raise ApiError(413, f"the body is longer than {MAX_BODY_BYTES} bytes", close=True)
    try:
        return msgspec.json.decode(data or b"{}", type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ApiError(400, str(error)) from None


def _json(value: object) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
