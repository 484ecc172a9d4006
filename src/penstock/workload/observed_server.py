"""A server that is asked for the workload that it has seen."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from typing import IO, Final
from urllib.parse import urlencode

import msgspec

from penstock.errors import PenstockError
from penstock.server_link import RefusedError, ServerLink, cause
from penstock.server_url import split_server_url
from penstock.workload.metrics import MetricsSummary, summarize_metrics
from penstock.workload.report import ObservedWorkload

_PATH: Final = "/engine/workload"
_PATIENCE_S: Final = 60.0
_MAX_REPORT: Final = 4 << 20
_MAX_METRICS: Final = 32 << 20
_PIECE: Final = 1 << 20
_NOT_THERE: Final = (404, 405, 501)
_HINTS: Final = {
    401: "; name the environment variable that holds the server's admin key by --api-key-env",
    403: "; where a server has keys, it tells its workload to the holder of the admin key alone",
}


class NotObservedError(PenstockError):
    """The server keeps nothing of its requests."""


class ObservedServer:
    """One of Penstock's servers, or another one's metrics. Raises ConfigError for what is no URL of
    a server, NotObservedError for a server that keeps nothing of its requests, and PenstockError
    with the cause where it tells nothing."""

    def __init__(self, url: str, api_key: str | None = None) -> None:
        parts = split_server_url(url)
        self.url = f"{parts.scheme}://{parts.netloc}"
        self._link = ServerLink(self.url, api_key)

    def observed(self, since_s: float | None = None) -> ObservedWorkload:
        """What the requests of the last ``since_s`` seconds were, or all that are kept."""
        with self._open("json", since_s) as reply:
            try:
                return msgspec.json.decode(reply.read(_MAX_REPORT), type=ObservedWorkload)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise PenstockError(
                    f"{self.url}{_PATH} is of another version of Penstock: {error}; use that of "
                    "the server"
                ) from None
            except (OSError, http.client.HTTPException) as error:
                raise self._broken(error) from None

    def trace(self, since_s: float | None = None) -> Iterator[bytes]:
        """The same requests as a trace, in pieces of whole lines. Asks at once, and reads as the
        pieces are taken."""
        return self._pieces(self._open("jsonl", since_s))

    def metrics(self) -> MetricsSummary | None:
        """What its metrics say of its workload; None where they say nothing of it. Raises
        PenstockError where they cannot be true."""
        try:
            with self._link.open("/metrics", _PATIENCE_S) as reply:
                text = reply.read(_MAX_METRICS).decode(errors="replace")
        except (PenstockError, OSError, http.client.HTTPException):
            return None
        try:
            return summarize_metrics(text)
        except PenstockError as error:
            raise PenstockError(
                f"the metrics of {self.url} cannot be true: {error}; the server, or what stands "
                "before it, has to be repaired"
            ) from None

    def _pieces(self, reply: IO[bytes]) -> Iterator[bytes]:
        # Only read() tells of a chunked answer that ends too early: readline() takes it for whole.
        rest = b""
        with reply:
            try:
                while piece := reply.read(_PIECE):
                    whole, newline, begun = piece.rpartition(b"\n")
                    if newline:
                        yield rest + whole + newline
                        rest = begun
                    else:
                        rest += begun
            except (OSError, http.client.HTTPException) as error:
                raise self._broken(error) from None
        if rest:
            raise self._broken(EOFError("its last line has no end"))

    def _open(self, kind: str, since_s: float | None) -> IO[bytes]:
        since = {} if since_s is None else {"since": since_s}
        try:
            return self._link.open(f"{_PATH}?{urlencode({'format': kind, **since})}", _PATIENCE_S)
        except RefusedError as error:
            if error.status in _NOT_THERE:
                why = "it is no server of Penstock, or an older one, and"
                if "--no-observe" in str(error):
                    why = "it was started with --no-observe, and"
                raise NotObservedError(
                    f"{self.url} has no {_PATH}: {why} keeps nothing of its requests"
                ) from None
            raise PenstockError(f"{error}{_HINTS.get(error.status, '')}") from None

    def _broken(self, error: BaseException) -> PenstockError:
        return PenstockError(f"{self.url}{_PATH} broke off its answer: {cause(error)}; ask again")
