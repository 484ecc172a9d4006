"""The requests that are being answered: counted, and ended from outside where they must be."""

from __future__ import annotations

import asyncio
import math
import re
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field

from starlette.datastructures import Headers
from starlette.types import Scope

from penstock.server.callers import Caller
from penstock.server.errors import ApiError, deadline_exceeded
from penstock.server.traced import TracedGeneration

REQUEST_ID = "x-request-id"
TIMEOUT = "x-request-timeout"
IGNORED = "x-penstock-ignored"
"""The answer's header that names fields which only gave advice, and were not followed."""

_SCOPE_KEY = "penstock.request"
_PLAIN_SECONDS = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?", re.ASCII)
_PLAIN_ID = re.compile(r"[\x21-\x7e]{1,128}")


@dataclass(eq=False)
class OpenRequest:
    """One HTTP request, from its headers to the end of its answer."""

    id: str
    """The client's ``x-request-id``, or one of ours. Two open requests may share a client's."""
    method: str
    path: str
    client: str
    ended: asyncio.Future[ApiError]
    """Done once the request was ended from outside: by deadline, administrator or shutdown."""
    began: float = field(default_factory=time.monotonic)
    key: str | None = None
    """Fingerprint of the API key that it came with."""
    caller: Caller = Caller()  # noqa: RUF009
    """Set when its key has been looked at."""
    notes: dict[str, object] = field(default_factory=dict)
    """What the access log tells besides."""
    ignored: tuple[str, ...] = ()
    """Fields of its body that are not followed, for the header of its answer."""
    timer: asyncio.TimerHandle | None = None
    generations: list[TracedGeneration] | None = None
    """Those that have ended, where the request is traced."""

    @classmethod
    def of(cls, scope: Scope) -> OpenRequest:
        """The one that this ASGI scope belongs to."""
        request: OpenRequest = scope[_SCOPE_KEY]
        return request

    @property
    def seconds(self) -> float:
        """Since its arrival."""
        return time.monotonic() - self.began

    def end(self, failure: ApiError) -> None:
        """Stop the work for this request; its client is told ``failure``. The first one counts."""
        if not self.ended.done():
            self.ended.set_result(failure)


class OpenRequests:
    """All requests of one server that ask for work; knows whether more may come."""

    def __init__(self, timeout_s: float | None = None) -> None:
        self._timeout_s = timeout_s
        self._open: set[OpenRequest] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self.draining: str | None = None
        """Why no more work is taken."""
        self.stopping = False
        """The server ends: it will not take work again."""
        self._gap_s = 1.0  # between ends: a moving average
        self._ended_at = time.monotonic()

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[OpenRequest]:
        return iter(list(self._open))

    def enter(self, scope: Scope) -> OpenRequest:
        """A request has come. :meth:`leave` must follow."""
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
        """The request asks for tokens: it counts from now on, and has a deadline.

        ``timeout`` is the header of that name, which can only shorten the server's own. Raises
        ApiError where it is no number of seconds.
        """
        seconds = min(self._timeout_s or math.inf, _seconds(timeout))
        if seconds < math.inf:
            loop = asyncio.get_running_loop()
            left = request.began + seconds - time.monotonic()
            request.timer = loop.call_later(left, request.end, deadline_exceeded(seconds))
        self._open.add(request)
        self._idle.clear()

    def leave(self, request: OpenRequest) -> None:
        """The answer is complete, or nobody waits for it."""
        if request.timer is not None:
            request.timer.cancel()
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
        """When one that was refused for want of room should come again: half have ended."""
        return max(1, min(60, math.ceil(self._gap_s * len(self._open) / 2)))

    def end(self, request_id: str, failure: ApiError) -> int:
        """End the open requests of this id; returns how many."""
        found = [request for request in self._open if request.id == request_id]
        for request in found:
            request.end(failure)
        return len(found)

    def end_all(self, failure: ApiError) -> int:
        """End every open request; returns how many."""
        for request in self._open:
            request.end(failure)
        return len(self._open)

    async def wait_idle(self, seconds: float) -> bool:
        """Wait until none is open; False if some still are after ``seconds``."""
        try:
            await asyncio.wait_for(self._idle.wait(), seconds)
        except TimeoutError:
            return False
        return True


def _seconds(text: str | None) -> float:
    """The seconds that a header asks for; without one, no limit."""
    if text is None:
        return math.inf
    seconds = float(text) if _PLAIN_SECONDS.fullmatch(text) else 0.0
    if seconds == 0.0:
        raise ApiError(
            400, f"{TIMEOUT} must be a number of seconds above 0, not {text[:40]!r}", param=TIMEOUT
        )
    return seconds
