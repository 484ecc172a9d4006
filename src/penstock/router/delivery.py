"""An answer on its way to the client, from one replica or from several in turn."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from starlette.types import Receive, Scope, Send

from penstock.errors import PenstockError
from penstock.router.exchange import EndedError, Exchange, UpstreamError
from penstock.router.reading import said
from penstock.router.resume.framing import Framing, framing_of
from penstock.router.resume.stream import Stream
from penstock.server.connection import PieceWriter
from penstock.server.error_forms import error_form
from penstock.server.errors import ApiError

WHOLE_BYTES: Final = 8 << 20
"""Answers without a stream of up to so many bytes are read to the end before they are passed on, so
that one that breaks off can be asked for elsewhere."""
_MAX_EVENT: Final = 64 << 20
"""Bytes of an event of one of our servers, which is kept until it is whole."""
_ERRORS: Final = (b'{"error"', b'{"type":"error"')
"""What errors within a stream begin with, as Penstock's servers write them."""
_ENGINE_DIED: Final = b'":"engine_dead"'
_ENDED: Final = (
    _ENGINE_DIED,
    *(b'":"shutting_down"', b'":"not_ready"', b'":"worker_unavailable"'),
)
"""What is in errors within a stream by which a replica says that it cannot go on, and others
may. The quotes are no text's: there they would be escaped."""

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
        self._scope = scope
        self._send = send
        self._form = error_form(path)
        self._framing: Framing | None = None
        """How the answer is cut into events; None: it is no stream."""
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

    def takes(self, exchange: Exchange) -> bool:
        """Whether an answer is what a client can be given that has the beginning of one."""
        framing = framing_of(exchange.content_type)
        return exchange.status == 200 and framing is not None and framing is self._framing

    async def pass_on(
        self, exchange: Exchange, head: Head, stream: Callable[[], Stream] | None, began: Began
    ) -> None:
        """Pass a replica's answer on, to its end; of a stream that was begun only what the client
        lacks. ``stream``: it is one that another replica may go on with. ``began`` is called once
        the first of its body is there.

        Raises UpstreamError and DivergedError.
        """
        self._framing = framing_of(exchange.content_type)
        if stream is None or self._framing is None:
            await self._pass_bytes(exchange, head, began)
            return
        self._stream = self._stream or stream()
        await self._pass_events(exchange, head, self._stream, began)

    async def pass_refusal(self, refusal: RefusedError) -> None:
        await self._start(refusal.head, len(refusal.body))
        await self._end(refusal.body)

    async def fail(self, failure: ApiError, receive: Receive) -> None:
        """Tell the client why there is no answer, or no more of it. Raises OSError where nothing
        can be told any more, and the connection should be cut."""
        if not self.started:
            answer = failure.response(self._form.body(failure))
            await answer(self._scope, receive, self._send)
            return
        if self._framing is None:
            raise OSError(str(failure))  # what was announced does not come
        # What came last may be half an event.
        lead = b"" if self._stream is not None else self._framing.end
        last = lead + self._form.last(failure)
        await self._send({"type": "http.response.body", "body": last, "more_body": True})
        await self._end()

    async def _pass_bytes(self, exchange: Exchange, head: Head, began: Began) -> None:
        """Pass an answer on as it comes, but a document in one piece."""
        length = exchange.length
        is_document = length is not None or exchange.content_type.startswith("application/json")
        if is_document and self._framing is None and (length or 0) <= WHOLE_BYTES:
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

    async def _pass_events(
        self, exchange: Exchange, head: Head, stream: Stream, began: Began
    ) -> None:
        """Pass a stream of one of our servers on by whole events, so that another one can go on
        behind any of them."""
        write = _writer(self._scope, self._send)
        framing = stream.framing
        waiting = b""
        while data := await exchange.read():
            began()
            waiting += data
            end = framing.whole(waiting)
            if not end:
                if len(waiting) > _MAX_EVENT:
                    raise UpstreamError("body", f"an event of more than {_MAX_EVENT >> 20} MiB")
                continue
            events, waiting = waiting[:end], waiting[end:]
            failure = max(framing.find(events, error) for error in _ERRORS)
            if failure >= 0:
                _check_stays(next(framing.datas(events[failure:])))
            if self._resumes:
                rests = (stream.rest(each) for each in framing.datas(events))
                events = b"".join(rest for rest in rests if rest is not None)
            else:
                stream.add(events)
            if not events:
                continue
            if not self.started:
                await self._start(head, None)
            await write(events)
            self.sent += len(events)
            if failure >= 0 or stream.is_over(events):
                await self._end()
                return
        if not waiting and stream.ended():
            if not self.started:
                await self._start(head, None)
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


def _check_stays(data: bytes) -> None:
    """Raise UpstreamError for the data of an error within a stream by which the replica says that
    it cannot go on; others stay what they are wherever the request goes."""
    if any(code in data for code in _ENDED):
        why = f"it could not go on: {said(data)}"
        raise EndedError("body", why, blameless=_ENGINE_DIED not in data)
