"""The open requests: counted, and ended from outside where necessary."""

from __future__ import annotations

import asyncio
import math
import re
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from starlette.datastructures import Headers
from starlette.types import Scope

from penstock.server.callers import Caller
from penstock.server.errors import ApiError, deadline_exceeded
from penstock.server.traced import TracedGeneration

REQUEST_ID = "x-request-id"
TIMEOUT = "x-request-timeout"
IGNORED = "x-penstock-ignored"
"""Response header that names the ignored advisory fields."""

_SCOPE_KEY = "penstock.request"
_PLAIN_SECONDS = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?", re.ASCII)
_PLAIN_ID = re.compile(r"[\x21-\x7e]{1,128}")


@dataclass(eq=False)
class OpenRequest:
    """One HTTP request, from its headers to the end of its response."""

    id: str
    """The client's ``x-request-id``, or a generated one. Two open requests may share a client's."""
    method: str
    path: str
    client: str
    ended: asyncio.Future[ApiError]
    """Done once the request is ended from outside: by deadline, administrator or shutdown."""
    began: float = field(default_factory=time.monotonic)
    key: str | None = None
    """Fingerprint of its API key."""
    caller: Caller = Caller()  # noqa: RUF009
    """The caller; set after the key was checked."""
    notes: dict[str, object] = field(default_factory=dict)
    """Further fields for the access log."""
    ignored: tuple[str, ...] = ()
    """Ignored fields of its body, for the response header."""
    heeded: tuple[str, ...] = ()
    """Fields that were acted on before the body was read as a dialect's."""
    timer: asyncio.TimerHandle | None = None
    generations: list[TracedGeneration] | None = None
    """Ended generations, if the request is traced."""
    on_leave: Callable[[], None] | None = None
    """Called when it leaves, whatever way it ended."""

    @classmethod
    def of(cls, scope: Scope) -> OpenRequest:
        """Return the request that belongs to this ASGI scope."""
        request: OpenRequest = scope[_SCOPE_KEY]
        return request

    @property
    def seconds(self) -> float:
        """Seconds since its arrival."""
        return time.monotonic() - self.began

    def end(self, failure: ApiError) -> None:
        """End the work for this request; its client gets ``failure``. Only the first call
        counts."""
        if not self.ended.done():
            self.ended.set_result(failure)


class OpenRequests:
    """All open requests of one server that use the engine; knows whether new ones are admitted."""

    def __init__(self, timeout_s: float | None = None) -> None:
        self._timeout_s = timeout_s
        self._open: set[OpenRequest] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self.draining: str | None = None
        """Why no new work is admitted; None while it is."""
        self.stopping = False
        """Whether the server is shutting down for good."""
        self._gap_s = 1.0  # between ends: a moving average
        self._ended_at = time.monotonic()

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[OpenRequest]:
        return iter(list(self._open))

    def enter(self, scope: Scope) -> OpenRequest:
        """Register a request that has arrived. :meth:`leave` must follow."""
        asked = Headers(scope=scope).get(REQUEST_ID, "")
        client = scope.get("client")
        request = OpenRequest(
            id=asked if _PLAIN_ID.fullmatch(asked) else f"req-{uuid.uuid4().hex}",
            method=scope["method"],
            path=scope["path"],
            client="" if client is None else f"{client[0]}:{client[1]}",
            ended=asyncio.get_running_loop().create_future(),
        )
        scope[_SCOPE_KEY] = request
        return request

    def begin_work(self, request: OpenRequest, timeout: str | None) -> None:
        """Count a request that asks for tokens, and start its deadline.

        ``timeout`` is the request's header of that name, which can only shorten the server's own
        limit. Safe to repeat. Raises ApiError if it is not a number of seconds.
        """
        if request in self._open:
            return
        seconds = min(self._timeout_s or math.inf, _seconds(timeout))
        if seconds < math.inf:
            loop = asyncio.get_running_loop()
            left = request.began + seconds - time.monotonic()
            request.timer = loop.call_later(left, request.end, deadline_exceeded(seconds))
        self._open.add(request)
        self._idle.clear()

    def has(self, request: OpenRequest) -> bool:
        """Whether it counts as work that was begun: one that waited for its model does before that
        has it."""
        return request in self._open

    def leave(self, request: OpenRequest) -> None:
        """Unregister a request whose response is complete or whose client is gone."""
        if request.timer is not None:
            request.timer.cancel()
        if request.on_leave is not None:
            request.on_leave()
        if request not in self._open:
            return
        self._open.remove(request)
        if not self._open:
            self._idle.set()
        now = time.monotonic()
        gap = min(now - self._ended_at, 5.0)  # a longer one is no sign of a slow engine
        self._gap_s += 0.1 * (gap - self._gap_s)
        self._ended_at = now

    def retry_after_s(self) -> int:
        """Return when a request that was refused should be sent again: when half have ended."""
        return max(1, min(60, math.ceil(self._gap_s * len(self._open) / 2)))

    def end(self, request_id: str, failure: ApiError) -> int:
        """End the open requests with this id; returns their number."""
        found = [request for request in self._open if request.id == request_id]
        for request in found:
            request.end(failure)
        return len(found)

    def end_all(self, failure: ApiError) -> int:
        """End every open request; returns their number."""
        for request in self._open:
            request.end(failure)
        return len(self._open)

    async def wait_idle(self, seconds: float) -> bool:
        """Wait until no request is open; False if some still are after ``seconds``."""
        try:
            await asyncio.wait_for(self._idle.wait(), seconds)
        except TimeoutError:
            return False
        return True


def _seconds(text: str | None) -> float:
    """Parse the seconds of a timeout header; without one, there is no limit."""
    if text is None:
        return math.inf
    seconds = float(text) if _PLAIN_SECONDS.fullmatch(text) else 0.0
    if seconds == 0.0:
        raise ApiError(
            400, f"{TIMEOUT} must be a number of seconds above 0, not {text[:40]!r}", param=TIMEOUT
        )
    return seconds
