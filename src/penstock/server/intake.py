"""What becomes of a request in any dialect, between its connection and its job."""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine
from dataclasses import replace
from typing import Any, Protocol, TypeVar, cast

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from penstock.errors import OverloadedError
from penstock.server.adapters import AdapterNames
from penstock.server.bodies import Bodies, Decoder
from penstock.server.body_decoder import BodyDecoder
from penstock.server.engine import PlacedEngine
from penstock.server.errors import (
    RETRY_AFTER_S,
    ApiError,
    overloaded,
    unavailable,
)
from penstock.server.ignored import IgnoredFields
from penstock.server.job import Job
from penstock.server.meter import Meter
from penstock.server.metrics import Counts
from penstock.server.observer import Observer
from penstock.server.open_requests import TIMEOUT, OpenRequest, OpenRequests
from penstock.server.options import ServerOptions
from penstock.server.read_body import Reader, read_body
from penstock.server.serving import Serving
from penstock.server.sse import EVENTS, ErrorWriter, EventStream, unless_ended
from penstock.server.supervisor import Supervisor

Body = TypeVar("Body", bound=msgspec.Struct)


class Work(Protocol):
    """A body that has the engine work."""

    @property
    def model(self) -> str: ...

    @property
    def sequences(self) -> int:
        """How many it opens at once."""
        ...


class Asking(Work, Protocol):
    """A body that asks for tokens."""

    @property
    def stream(self) -> bool | None: ...


def with_adapter(serving: Serving, adapter: str) -> Serving:
    """What serves a request that asks for this adapter."""
    if not adapter:
        return serving
    return replace(serving, caller=replace(serving.caller, adapter=adapter))


class Intake:
    """Admits requests, reads their bodies and answers them by their jobs."""

    def __init__(
        self,
        engine: Supervisor,
        requests: OpenRequests,
        options: ServerOptions,
        counts: Counts,
        observer: Observer | None,
        serving: Serving,
        aliases: Collection[str] = (),
    ) -> None:
        self._engine = engine
        self._requests = requests
        self._options = options
        self._counts = counts
        self._observer = observer
        self._serving = serving
        self._names = AdapterNames(engine, aliases)
        self._ignored = IgnoredFields()
        self.bodies = Bodies(options.max_body_bytes, options.body_timeout_s)

    async def answered(
        self,
        request: Request,
        decoder: BodyDecoder[Body],
        prepare: Callable[[Body, Serving, Meter], Coroutine[Any, Any, Job]],
        error_body: ErrorWriter = ApiError.json,
        media_type: str = EVENTS,
        read: Reader = read_body,
    ) -> Response | EventStream:
        """Answer a request whose body ``decoder`` reads, an :class:`Asking`, by the job that
        ``prepare`` makes of it: whole, or as events where it asks for a stream.

        ``error_body`` writes the errors of a stream that has not begun, ``media_type`` is that of a
        stream, and ``read`` reads the body. Raises ApiError, RequestError and ClientGone.
        """
        body, serving, meter = await self._taken(request, decoder, read)
        job = await unless_ended(request, request.receive, prepare(body, serving, meter))
        if cast(Asking, body).stream:
            return EventStream(request, job.events(), job.error, error_body, media_type)
        answer = await unless_ended(request, request.receive, job.answer())
        return Response(answer, media_type="application/json")

    async def answered_whole(
        self,
        request: Request,
        decoder: BodyDecoder[Body],
        work: Callable[[Body, Serving, Meter], Coroutine[Any, Any, bytes]],
        read: Reader = read_body,
    ) -> Response:
        """As :meth:`answered`, of what has no streams, by the JSON that ``work`` makes."""
        body, serving, meter = await self._taken(request, decoder, read)
        answer = await unless_ended(request, request.receive, work(body, serving, meter))
        return Response(answer, media_type="application/json")

    async def _taken(
        self, request: Request, decoder: BodyDecoder[Body], read: Reader
    ) -> tuple[Body, Serving, Meter]:
        """Admit a request and read its body."""
        meter = self.begin(request)
        body = await self.decoded(request, decoder, read)
        asked = cast(Work, body)  # a type cannot say that it is a struct and has these fields
        adapter = self.adapter(asked.model)
        return body, with_adapter(await self.admitted(request, asked.sequences), adapter), meter

    def begin(self, request: Request) -> Meter:
        """Admit the request before its body is read. Raises ApiError if it cannot be admitted
        now."""
        opened = OpenRequest.of(request.scope)
        if self._requests.draining is not None and not self._requests.has(opened):
            raise unavailable(self._requests.draining, "draining", RETRY_AFTER_S)
        try:
            self._engine.check(opened.caller.tenant)
        except OverloadedError as error:
            raise self._full(error) from None
        self._requests.begin_work(opened, request.headers.get(TIMEOUT))
        options = self._options
        return Meter(self._counts, opened, options.log_prompts, self._observer, options.slo)

    def serving_to(self, request: Request) -> Serving:
        return replace(self._serving, caller=OpenRequest.of(request.scope).caller)

    async def admitted(self, request: Request, sequences: int) -> Serving:
        """Let a request for so many sequences use the engine, until it leaves: at once, or when an
        exchange of engines is over. Raises ApiError, and ClientGone."""
        opened, turnstile = OpenRequest.of(request.scope), self._engine.turnstile
        if turnstile.is_open:
            opened.on_leave = turnstile.enter().close
            return self.serving_to(request)
        holding = turnstile.hold(opened.caller.tenant, sequences)
        try:
            entry = await unless_ended(request, request.receive, holding)
        except OverloadedError as error:
            raise self._full(error) from None
        opened.on_leave = entry.close
        opened.notes["held_s"] = round(entry.held_s, 6)
        serving = self.serving_to(request)
        if entry.place is None:
            return serving
        return replace(serving, engine=PlacedEngine(self._engine, entry.place))

    def _full(self, error: OverloadedError) -> ApiError:
        self._counts.refused_full += 1
        return overloaded(str(error), self._requests.retry_after_s())

    def adapter(self, asked: str) -> str:
        """The digest of the adapter that is asked for as a model; empty for the model itself.
        Raises ApiError where there is no such model."""
        return self._names.digest(asked)

    def check_model(self, asked: str) -> None:
        """Raise ApiError where there is no such model, and no such adapter."""
        self.adapter(asked)

    async def decoded(
        self, request: Request, decoder: Decoder[Body], read: Reader = read_body
    ) -> Body:
        decoded = await self.bodies.decoded(request, decoder, read)
        if decoded.ignored:
            self._ignored.report(OpenRequest.of(request.scope), decoded)
        return decoded.request
