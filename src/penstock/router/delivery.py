"""An answer on its way to the client, from one replica or from several in turn."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NamedTuple

import msgspec
from starlette.types import Receive, Scope, Send

from penstock.errors import PenstockError
from penstock.router.exchange import EndedError, Exchange, UpstreamError
from penstock.router.reading import said
from penstock.router.resume import ChoiceStream, Stream, datas
from penstock.router.resume_messages import MessageStream
from penstock.router.resume_responses import ResponseStream
from penstock.server.anthropic import errors as anthropic_errors
from penstock.server.anthropic.paths import MESSAGES
from penstock.server.connection import PieceWriter
from penstock.server.errors import ApiError
from penstock.server.sse import error_event, event

_RESPONSES: Final = "/v1/responses"
RESUMED: Final[Mapping[str, Callable[[], Stream]]] = {
    "/v1/completions": ChoiceStream,
    "/v1/chat/completions": ChoiceStream,
    _RESPONSES: ResponseStream,
    MESSAGES: MessageStream,
}
"""Paths whose streams can be continued by another replica."""
WHOLE_BYTES: Final = 8 << 20
"""Answers without a stream of up to so many bytes are read to the end before they are passed on, so
that one that breaks off can be asked for elsewhere."""
_MAX_EVENT: Final = 64 << 20
"""Bytes of an event of one of our servers, which is kept until it is whole."""
_ERRORS: Final = (b'data: {"error"', b'data: {"type":"error"')
"""What errors within a stream begin with, as Penstock's servers write them."""
_ENGINE_DIED: Final = b'"code":"engine_dead"'
_ENDED: Final = (
    _ENGINE_DIED,
    *(b'"code":"shutting_down"', b'"code":"not_ready"', b'"code":"worker_unavailable"'),
)
"""Errors within a stream by which a replica says that it cannot go on, and others may."""

Began = Callable[[], None]


class Head(NamedTuple):
    """What an answer begins with."""

    status: int
    headers: list[tuple[bytes, bytes]]
    """All but the length of the body."""


class RefusedError(PenstockError):
    """A replica refused a request that another one may take; nothing was passed on of it."""

    def __init__(self, head: Head, body: bytes) -> None:
        super().__init__(f"it refused, with status {head.status}")
        self.head = head
        self.body = body
        self.engine_died = _ENGINE_DIED in body
        """Whether its engine had taken the request, and died."""


class Delivery:
    """What the client has of its answer, and the way to it.

    An answer *starts* once, with the head of the first replica that has something to say. From then
    on only what follows what the client has can be passed on: the events of a stream that another
    of our servers makes again, without those that the client has.
    """

    def __init__(self, path: str, scope: Scope, send: Send) -> None:
        self._path = path
        self._scope = scope
        self._send = send
        self._is_event_stream = False
        self._stream: Stream | None = None
        """What the client has, where another replica may continue it."""
        self._resumes = False
        self.started = False
        self.sent = 0
        """Bytes of the body that were passed on."""

    @property
    def resumable(self) -> bool:
        """Whether a replica that answers the same may go on behind what the client has."""
        return not self.started or self._stream is not None

    def resume(self) -> None:
        """Another replica begins the answer again."""
        if self._stream is not None:
            self._resumes = True
            self._stream.begin()

    async def pass_on(self, exchange: Exchange, head: Head, by_events: bool, began: Began) -> None:
        """Pass a replica's answer on, to its end; of a stream that was begun only what the client
        lacks. ``by_events``: it is one that another replica may go on with. ``began`` is called
        once the first of its body is there.

        Raises UpstreamError and DivergedError.
        """
        if exchange.is_event_stream:
            self._is_event_stream = True
            if by_events:
                await self._pass_events(exchange, head, began)
                return
        await self._pass_bytes(exchange, head, began)

    async def pass_refusal(self, refusal: RefusedError) -> None:
        await self._start(refusal.head, len(refusal.body))
        await self._end(refusal.body)

    async def fail(self, failure: ApiError, receive: Receive) -> None:
        """Tell the client why there is no answer, or no more of it. Raises OSError where nothing
        can be told any more, and the connection should be cut."""
        if not self.started:
            body = anthropic_errors.body(failure) if self._path == MESSAGES else failure.json()
            await failure.response(body)(self._scope, receive, self._send)
            return
        if not self._is_event_stream:
            raise OSError(str(failure))  # what was announced does not come
        # What came last may be half an event.
        lead = b"" if self._stream is not None else b"\n\n"
        last = lead + self._error_event(failure)
        await self._send({"type": "http.response.body", "body": last, "more_body": True})
        await self._end()

    def _error_event(self, failure: ApiError) -> bytes:
        """The event that says why a stream ends early, as its dialect has it."""
        if self._path == MESSAGES:
            return anthropic_errors.event(failure)
        if self._path != _RESPONSES:
            return error_event(failure)
        said = failure.body.error
        told = {"type": "error", "code": said.code, "message": said.message, "param": None}
        return event(msgspec.json.encode(told))

    async def _pass_bytes(self, exchange: Exchange, head: Head, began: Began) -> None:
        """Pass an answer on as it comes, but a document in one piece."""
        length = exchange.length
        is_document = length is not None or exchange.content_type.startswith("application/json")
        if is_document and not self._is_event_stream and (length or 0) <= WHOLE_BYTES:
            data = await exchange.read_some(WHOLE_BYTES)
            if exchange.whole:
                length = len(data)
        else:
            data = await exchange.read()
        began()
        await self._start(head, length)
        write = _writer(self._scope, self._send, length is None)
        while data:
            await write(data)
            self.sent += len(data)
            data = await exchange.read()
        await self._end()

    async def _pass_events(self, exchange: Exchange, head: Head, began: Began) -> None:
        """Pass a stream of one of our servers on by whole events, so that another one can go on
        behind any of them."""
        write = _writer(self._scope, self._send)
        stream = self._stream = self._stream or RESUMED[self._path]()
        waiting = b""
        while data := await exchange.read():
            began()
            waiting += data
            end = waiting.rfind(b"\n\n") + 2
            if end < 2:
                if len(waiting) > _MAX_EVENT:
                    raise UpstreamError("body", f"an event of more than {_MAX_EVENT >> 20} MiB")
                continue
            events, waiting = waiting[:end], waiting[end:]
            failed = any(error in events for error in _ERRORS)
            if failed:
                _check_stays(events)
            if self._resumes:
                rests = (stream.rest(each) for each in datas(events))
                events = b"".join(rest for rest in rests if rest is not None)
            else:
                stream.add(events)
            if not events:
                continue
            if not self.started:
                await self._start(head, None)
            await write(events)
            self.sent += len(events)
            if failed or stream.is_over(events):
                await self._end()
                return
        raise UpstreamError("body", "its stream ended before the answer did")

    async def _start(self, head: Head, length: int | None) -> None:
        self.started = True
        headers = list(head.headers)
        if length is not None and head.status not in (204, 304):
            headers.append((b"content-length", b"%d" % length))
        start = {"type": "http.response.start", "status": head.status, "headers": headers}
        await self._send(start)

    async def _end(self, data: bytes = b"") -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": False})


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
    if any(code in events for code in _ENDED):
        at = min(events.find(error) for error in _ERRORS if error in events)
        why = said(next(datas(events[at:])))
        raise EndedError("body", f"it could not go on: {why}", blameless=_ENGINE_DIED not in events)
