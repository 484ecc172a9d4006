"""One request: a replica is chosen and its answer passed on; another one where that fails."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from penstock.errors import PenstockError
from penstock.router.exchange import Exchange, Headers, UpstreamError
from penstock.router.fleet import Fleet
from penstock.router.headers import passed_headers, sent_headers
from penstock.router.prompts import Body, Prompts, with_seed
from penstock.router.replica import Replica
from penstock.router.resume import ChoiceStream, DivergedError, Stream, datas
from penstock.router.resume_responses import ResponseStream
from penstock.routing.query import Query
from penstock.routing.router import Sent
from penstock.server.connection import PieceWriter
from penstock.server.errors import RETRY_AFTER_S, ApiError, unavailable
from penstock.server.open_requests import OpenRequest
from penstock.server.sse import ClientGone, event, unless_ended

_RESPONSES: Final = "/v1/responses"
RESUMED: Final[Mapping[str, Callable[[], Stream]]] = {
    "/v1/completions": ChoiceStream,
    "/v1/chat/completions": ChoiceStream,
    _RESPONSES: ResponseStream,
}
"""Paths whose streams can be continued by another replica."""
_ERRORS: Final = (b'data: {"error"', b'data: {"type":"error"')
"""What errors within a stream begin with, as Penstock's servers write them."""
_ELSEWHERE: Final = (429, 502, 503)
"""Statuses by which a replica says that another one should be asked."""
_ENDED: Final = (b"engine_dead", b"shutting_down", b"not_ready", b"worker_unavailable")
"""Codes of errors within a stream by which a replica says that it cannot go on, and others may."""
_WHOLE_BYTES: Final = 8 << 20
"""Answers without a stream of up to so many bytes are read to the end before they are passed on, so
that one that breaks off can be asked for elsewhere."""
_LAST_WORDS_S: Final = 5.0
_SEED_BITS: Final = 63
_log = logging.getLogger("penstock.router")


@dataclass(frozen=True)
class Asked:
    """A request as it came."""

    method: str
    path: str
    target: str
    """Path and query as they came, with what is escaped in them."""
    headers: Headers
    data: bytes
    body: Body | None
    """None for what is no object of JSON."""
    session: str | None

    @property
    def streams(self) -> bool:
        return self.body is not None and self.body.stream is True


class _RefusedError(PenstockError):
    """A replica refused a request that another one may take; nothing of an answer was sent."""

    def __init__(self, exchange: Exchange, body: bytes) -> None:
        super().__init__(f"it refused, with status {exchange.status}")
        self.status = exchange.status
        self.headers = passed_headers(exchange.headers)
        self.body = body


class Relay:
    """An ASGI answer: that of a replica."""

    def __init__(self, request: Request, asked: Asked, fleet: Fleet, prompts: Prompts) -> None:
        self._request = request
        self._asked = asked
        self._fleet = fleet
        self._prompts = prompts
        self._opened = OpenRequest.of(request.scope)
        self._started = False
        self._event_stream = False
        self._stream: Stream | None = None
        """What the client has, where another replica may continue it."""
        self._resumed = False
        self._seed: int | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await unless_ended(self._request, receive, self._serve(scope, receive, send))
        except (ClientGone, OSError):
            self._opened.notes["left"] = True
        except ApiError as failure:
            self._opened.notes["ended"] = failure.body.error.code
            with contextlib.suppress(TimeoutError, OSError):
                async with asyncio.timeout(_LAST_WORDS_S):
                    await self._fail(failure, scope, receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        fleet, body = self._fleet, self._asked.body
        model = None if body is None else body.model
        query: Query | None = None
        tried: list[Replica] = []
        refusal: _RefusedError | None = None
        trouble = ""
        while True:
            among = self._able(model, tried)
            if not among:
                if refusal is not None and not self._started:
                    await self._pass_refusal(refusal, send)
                    return
                raise self._nobody(model, tried, trouble)
            if query is None:
                query = await self._query(among)
                among = self._able(model, tried) or among  # time has passed
            replica, choice = fleet.choose(query, among)
            sent = fleet.begin(replica, query, choice)
            notes = self._opened.notes
            notes["replica"] = replica.url
            notes["cached"] = choice.cached
            if tried:
                notes["tries"] = len(tried) + 1
            try:
                await self._try(replica, sent, scope, send, bool(among & (among - 1)))
                return
            except _RefusedError as error:
                refusal, trouble = error, str(error)
                replica.counts.retried += 1
            except DivergedError as error:
                raise _broken_off(str(error)) from None
            except UpstreamError as error:
                trouble = f"{replica.url}: {error}"
                self._failed(replica, error)
            finally:
                fleet.router.end(sent)
            tried.append(replica)

    def _able(self, model: str | None, tried: list[Replica]) -> int:
        """The set of replicas that may be tried. A stream that has begun goes on at ours alone."""
        fleet = self._fleet
        left_out = [r for r in fleet.replicas if not r.is_ours] if self._started else []
        return fleet.ready(model, [*tried, *left_out])

    def _failed(self, replica: Replica, error: UpstreamError) -> None:
        """Note that a replica failed; raises ApiError where no other can go on."""
        replica.counts.failures += 1
        _log.warning("%s: %s (%s)", replica.url, error, self._opened.id)
        if error.stage == "connect":
            self._fleet.now(replica, "down", str(error))
        if not self._started:
            replica.counts.retried += 1
            return
        if self._stream is None:
            raise _broken_off(f"the replica that answered is gone ({error})")
        replica.counts.resumed += 1
        self._opened.notes["resumed"] = True
        self._resumed = True
        self._stream.begin()

    async def _query(self, among: int) -> Query:
        asked = self._asked
        if asked.body is None:
            return Query((), max(len(asked.data) // 4, 1), asked.session)
        return await self._prompts.query(asked.path, asked.data, asked.body, among, asked.session)

    async def _try(
        self, replica: Replica, sent: Sent, scope: Scope, send: Send, others: bool
    ) -> None:
        """Send the request to a replica, and pass its answer on.

        Raises UpstreamError, _RefusedError where ``others`` may be asked, and DivergedError.
        """
        asked = self._asked
        client = self._request.client
        resumable = replica.is_ours and asked.streams and asked.path in RESUMED
        exchange = await replica.pool.exchange(
            asked.method,
            asked.target,
            sent_headers(asked.headers, self._opened.id, client.host if client else None),
            self._data(resumable),
            self._fleet.options.timeouts,
        )
        try:
            if self._started and exchange.status != 200:
                said = (await exchange.read_all(_WHOLE_BYTES))[:200]
                raise UpstreamError("head", f"status {exchange.status}: {said!r}")
            if exchange.status in _ELSEWHERE and others:
                raise _RefusedError(exchange, await exchange.read_all(_WHOLE_BYTES))
            if exchange.content_type.startswith("text/event-stream"):
                self._event_stream = True
                if resumable:
                    await self._pass_events(exchange, sent, scope, send)
                    return
            await self._pass_bytes(exchange, sent, scope, send)
        finally:
            exchange.close()

    def _data(self, resumable: bool) -> bytes:
        """The body to send: with a seed of ours where the answer may have to be made again."""
        asked = self._asked
        if not resumable or asked.body is None or asked.body.seed is not None:
            return asked.data
        if self._seed is None:
            self._seed = secrets.randbits(_SEED_BITS)
        return with_seed(asked.data, self._seed)

    async def _pass_bytes(self, exchange: Exchange, sent: Sent, scope: Scope, send: Send) -> None:
        """Pass an answer on as it comes."""
        if not self._event_stream and (exchange.length or 0) <= _WHOLE_BYTES and exchange.length:
            body = await exchange.read_all(_WHOLE_BYTES)
            self._fleet.router.prefilled(sent)
            await self._start(exchange, send)
            await send({"type": "http.response.body", "body": body, "more_body": False})
            return
        write = _writer(scope, send, exchange.length is None)
        while data := await exchange.read():
            if not self._started:
                self._fleet.router.prefilled(sent)
                await self._start(exchange, send)
            await write(data)
        if not self._started:
            await self._start(exchange, send)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _pass_events(self, exchange: Exchange, sent: Sent, scope: Scope, send: Send) -> None:
        """Pass a stream of one of our servers on by whole events, so that another one can go on
        behind any of them."""
        write = _writer(scope, send)
        stream = self._stream = self._stream or RESUMED[self._asked.path]()
        waiting = b""
        while data := await exchange.read():
            self._fleet.router.prefilled(sent)
            waiting += data
            end = waiting.rfind(b"\n\n") + 2
            if end < 2:
                continue
            events, waiting = waiting[:end], waiting[end:]
            failed = any(error in events for error in _ERRORS)
            if failed:
                _check_stays(events)
            if self._resumed:
                rests = (stream.rest(each) for each in datas(events))
                events = b"".join(rest for rest in rests if rest is not None)
            else:
                stream.add(events)
            if not events:
                continue
            if not self._started:
                await self._start(exchange, send)
            await write(events)
            if failed or stream.is_over(events):
                await send({"type": "http.response.body", "body": b"", "more_body": False})
                return
        raise UpstreamError("body", "its stream ended before the answer did")

    async def _start(self, exchange: Exchange, send: Send) -> None:
        self._started = True
        headers = passed_headers(exchange.headers)
        if exchange.length is not None and exchange.status not in (204, 304):
            headers.append((b"content-length", b"%d" % exchange.length))
        await send({"type": "http.response.start", "status": exchange.status, "headers": headers})

    async def _pass_refusal(self, refusal: _RefusedError, send: Send) -> None:
        self._started = True
        headers = [*refusal.headers, (b"content-length", b"%d" % len(refusal.body))]
        await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
        await send({"type": "http.response.body", "body": refusal.body, "more_body": False})

    def _nobody(self, model: str | None, tried: list[Replica], trouble: str) -> ApiError:
        """The error for a request that no replica is left for."""
        fleet = self._fleet
        if self._started:
            return _broken_off(
                f"the replica that answered is gone, and no other is left ({trouble})"
            )
        if not tried and fleet.ready(None):
            models = ", ".join(map(repr, fleet.models))
            return ApiError(
                404,
                f"the model {model!r} does not exist here; the replicas serve {models}",
                type="not_found_error",
                param="model",
                code="model_not_found",
            )
        why = trouble or "; ".join(
            f"{replica.url}: {replica.trouble or replica.state}" for replica in fleet.replicas
        )
        return unavailable(f"no replica can serve this now: {why}", "no_replica", RETRY_AFTER_S)

    async def _fail(self, failure: ApiError, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._started:
            await failure.response()(scope, receive, send)
            return
        if not self._event_stream:
            raise OSError(str(failure))  # the connection is cut: what was announced does not come
        # What came last may be half an event.
        lead = b"" if self._stream is not None else b"\n\n"
        data = failure.json()
        if self._asked.path == _RESPONSES:
            said = failure.body.error
            data = msgspec.json.encode(
                {"type": "error", "code": said.code, "message": said.message, "param": None}
            )
        await send({"type": "http.response.body", "body": lead + event(data), "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _writer(scope: Scope, send: Send, chunked: bool = True) -> Callable[[bytes], Awaitable[None]]:
    """What writes a piece of the body; past ASGI where it is ``chunked``."""
    pieces = PieceWriter.of(scope) if chunked else None
    if pieces is not None:
        return pieces.write

    async def write(data: bytes) -> None:
        await send({"type": "http.response.body", "body": data, "more_body": True})

    return write


def _check_stays(events: bytes) -> None:
    """Raise UpstreamError for an error within a stream by which the replica says that it cannot go
    on; others stay what they are wherever the request goes."""
    if any(b'"code":"%b"' % code in events for code in _ENDED):
        at = min(events.find(error) for error in _ERRORS if error in events)
        raise UpstreamError("body", f"it could not go on: {events[at + 6 : at + 200]!r}")


def _broken_off(why: str) -> ApiError:
    return ApiError(
        502,
        f"the answer broke off: {why}; send the request again",
        type="server_error",
        code="stream_broken",
    )
