"""The administrator's endpoints: ``/admin/...``, with the admin key."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Iterable
from typing import Annotated, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from penstock.errors import ConfigError, PenstockError
from penstock.profile import MOST_BYTES, Profile
from penstock.server import logs
from penstock.server.body_decoder import BodyDecoder
from penstock.server.errors import ApiError, aborted
from penstock.server.open_requests import OpenRequests
from penstock.server.openapi import Endpoint
from penstock.server.options import ServerOptions
from penstock.server.small_body import small_body
from penstock.server.sse import unless_ended
from penstock.server.status_structs import ProfileStatus, Switched
from penstock.server.supervisor import Supervisor
from penstock.server.switch import Switch

ENGINE_TIMEOUT_S = 10.0
MAX_BODY_BYTES = 4096
WITHIN_S = 600.0
"""Seconds for which a switch of profiles waits for a moment without requests, where the
administrator does not say how long."""
LONGEST_WITHIN_S = 86_400.0

_log = logging.getLogger("penstock.admin")

T = TypeVar("T")
Body = TypeVar("Body", bound=msgspec.Struct)


class AbortBody(msgspec.Struct, forbid_unknown_fields=True):
    """Which requests to stop: by ``x-request-id`` or by the id of their answer; or all."""

    request_id: str | None = None
    all: bool = False


class NoFields(msgspec.Struct, forbid_unknown_fields=True):
    """What is asked for needs no fields, and has none."""


class LogLevelBody(msgspec.Struct, forbid_unknown_fields=True):
    level: str


class ProfileBody(msgspec.Struct, forbid_unknown_fields=True):
    profile: Annotated[
        dict[str, object], msgspec.Meta(description="A document that penstock tune has written.")
    ]
    within_s: Annotated[float, msgspec.Meta(ge=0, le=LONGEST_WITHIN_S)] = WITHIN_S
    """Seconds to wait for a moment without requests; after these, new ones are held."""


class EngineStatus(msgspec.Struct, frozen=True, kw_only=True):
    pid: int
    trouble: str | None
    restarts: int
    open_sequences: int
    max_sequences: int


class ServerStatus(msgspec.Struct, frozen=True, kw_only=True):
    pid: int
    """Process id of the HTTP server (not that of its guardian)."""
    restarts: int


class RequestStatus(msgspec.Struct, frozen=True, kw_only=True):
    request_id: str
    client: str
    path: str
    key: str | None
    seconds: float


class Status(msgspec.Struct, frozen=True, kw_only=True):
    server: ServerStatus
    engine: EngineStatus
    profile: ProfileStatus
    draining: str | None
    requests: list[RequestStatus]


class Aborted(msgspec.Struct, frozen=True):
    aborted: int


class Draining(msgspec.Struct, frozen=True):
    draining: bool
    open: int
    """Number of requests that are still being answered."""


class Cleared(msgspec.Struct, frozen=True):
    cleared: bool


class Checked(msgspec.Struct, frozen=True, omit_defaults=True):
    ok: bool
    error: str | None = None


class LogLevel(msgspec.Struct, frozen=True):
    level: str


class ServerAdmin:
    """The handlers of ``/admin`` that are about the server and its requests. Access is checked
    before they are called."""

    def __init__(
        self,
        engines: Callable[[], Iterable[Supervisor]],
        requests: OpenRequests,
        options: ServerOptions,
    ) -> None:
        """``engines`` are those that run now."""
        self._engines = engines
        self._options = options
        self._requests = requests
        self._abort_decoder = BodyDecoder(AbortBody)
        self._nothing = BodyDecoder(NoFields)
        self._level_decoder = BodyDecoder(LogLevelBody)

    def endpoints(self) -> list[Endpoint]:
        return [
            endpoint("POST", "abort", self.abort, Aborted, AbortBody),
            endpoint("POST", "drain", self.drain, Draining),
            endpoint("POST", "resume", self.resume, Draining),
            endpoint("POST", "log-level", self.log_level, LogLevel, LogLevelBody),
        ]

    def open_requests(self) -> list[RequestStatus]:
        """The requests that are open, as the status shows them."""
        return [
            RequestStatus(
                request_id=each.id,
                client=each.client,
                path=each.path,
                key=each.key,
                seconds=each.seconds,
            )
            for each in self._requests
        ]

    async def abort(self, request: Request) -> Response:
        """Stop requests; their clients get an error."""
        body = await self.body(request, self._abort_decoder)
        if body.all == (body.request_id is not None):
            raise ApiError(400, "give either request_id or all", param="request_id")
        if body.request_id is None:
            ended = self._requests.end_all(aborted())
        else:
            ended = self._requests.end(body.request_id, aborted())
            for engine in self._engines():
                ended = ended or engine.llm.abort_matching(body.request_id)
        _log.warning("aborted %d requests (%s)", ended, body.request_id or "all")
        return _json(Aborted(ended))

    async def drain(self, request: Request) -> Response:
        """Take no more work; what is open goes on."""
        await self.body(request, self._nothing)
        self._requests.draining = "the server is being drained by its administrator"
        _log.warning("draining: %d requests are open", len(self._requests))
        return _json(Draining(True, len(self._requests)))

    async def resume(self, request: Request) -> Response:
        """Take work again after a drain."""
        await self.body(request, self._nothing)
        if self._requests.stopping:
            raise ApiError(409, "the server is shutting down", code="shutting_down")
        self._requests.draining = None
        _log.warning("taking work again")
        return _json(Draining(False, len(self._requests)))

    async def log_level(self, request: Request) -> Response:
        """Set the level of the log until the server ends."""
        body = await self.body(request, self._level_decoder)
        if body.level not in logs.LEVELS:
            levels = ", ".join(logs.LEVELS)
            raise ApiError(400, f"level must be one of {levels}", param="level")
        logs.set_level(body.level)
        _log.warning("the log's level is now %s", body.level)
        return _json(LogLevel(body.level))

    async def body(
        self, request: Request, decoder: BodyDecoder[Body], limit: int = MAX_BODY_BYTES
    ) -> Body:
        """The body as JSON, {} where there is none. Raises ApiError."""
        return await small_body(request, decoder, limit, self._options.body_timeout_s)


class Admin(ServerAdmin):
    """All handlers of ``/admin``, of a server of one model."""

    def __init__(
        self, engine: Supervisor, requests: OpenRequests, options: ServerOptions, switch: Switch
    ) -> None:
        super().__init__(lambda: (engine,), requests, options)
        self._engine = engine
        self._switch = switch
        self._profile_decoder = BodyDecoder(ProfileBody)

    def endpoints(self) -> list[Endpoint]:
        return [
            endpoint("GET", "status", self.status, Status),
            *super().endpoints(),
            endpoint("POST", "cache/clear", self.clear_cache, Cleared),
            endpoint("POST", "check", self.check, Checked),
            endpoint("POST", "profile", self.profile, Switched, ProfileBody),
        ]

    async def status(self, request: Request) -> Response:
        """The processes and the requests that are open."""
        engine = self._engine
        llm = engine.llm
        return _json(
            Status(
                server=ServerStatus(pid=os.getpid(), restarts=self._options.restarts),
                engine=EngineStatus(
                    pid=llm.process.pid,
                    trouble=engine.trouble,
                    restarts=engine.restarts,
                    open_sequences=llm.open_sequences.count,
                    max_sequences=engine.max_sequences,
                ),
                profile=self._switch.status,
                draining=self._requests.draining,
                requests=self.open_requests(),
            )
        )

    async def clear_cache(self, request: Request) -> Response:
        """Forget every cached prefix."""
        await self.body(request, self._nothing)
        await _of_engine(self._engine.llm.reset_prefix_cache())
        _log.warning("the prefix cache was cleared")
        return _json(Cleared(True))

    async def check(self, request: Request) -> Response:
        """Check that the engine's bookkeeping is consistent: queues, sequences, blocks."""
        await self.body(request, self._nothing)
        try:
            await _of_engine(self._engine.llm.check_integrity())
        except PenstockError as error:
            if isinstance(error, ApiError):
                raise
            _log.error("%s", error)
            return _json(Checked(False, str(error)))
        return _json(Checked(True))

    async def profile(self, request: Request) -> Response:
        """Put another profile in force, once no request is open; those that come then wait."""
        body = await self.body(request, self._profile_decoder, MOST_BYTES)
        if self._requests.stopping:
            raise ApiError(409, "the server is shutting down", code="shutting_down")
        try:
            profile = Profile.decoded(msgspec.json.encode(body.profile), "the profile")
        except ConfigError as error:
            raise ApiError(400, str(error), param="profile") from None
        switching = self._switch.begin(profile, body.within_s)

        async def done() -> Switched:
            # It goes on if its caller leaves: a proxy between may have less patience.
            return await asyncio.shield(switching)

        return _json(await unless_ended(request, request.receive, done()))


def endpoint(
    method: str,
    name: str,
    handler: Callable[[Request], Awaitable[Response]],
    answer: type[msgspec.Struct],
    body: type[msgspec.Struct] | None = None,
) -> Endpoint:
    summary = (handler.__doc__ or "").strip()
    return Endpoint(method, f"/admin/{name}", handler, summary, answer, body, access="admin")


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


def _json(value: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
