"""Asks a server for what one command needs: a request at a time, with causes for what fails."""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from typing import IO, Any, Final

import msgspec

from penstock.errors import ConfigError, PenstockError, first_line
from penstock.json_text import decoded

_MAX_ERROR: Final = 1 << 20


class RefusedError(PenstockError):
    """The server answered with a status that is no success."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect is an error: the key is for the server that the user has named."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


class ServerLink:
    """A server whose paths are below ``url``. Raises ConfigError for a key that no header holds."""

    def __init__(self, url: str, api_key: str | None = None) -> None:
        self.url = url
        if api_key is not None and not (api_key.isascii() and api_key.isprintable()):
            # A header's own error would show it.
            raise ConfigError(
                "the server's key has characters that no key has, such as the end of a line; check "
                "the environment variable that holds it"
            )
        self._api_key = api_key
        self._opener = urllib.request.build_opener(_NoRedirect)

    def open(self, path: str, timeout: float, body: bytes | None = None) -> IO[bytes]:
        """The answer to a GET or, with a body of JSON, to a POST; to be closed by the caller.

        Gives up after ``timeout`` seconds without a byte. Raises RefusedError, and PenstockError
        where the server cannot be reached.
        """
        headers = {"Content-Type": "application/json", "Accept": "*/*"}
        if self._api_key:
            headers["Authorization"] = f"Bearer {self._api_key}"
        request = urllib.request.Request(self.url + path, body, headers)
        try:
            reply: IO[bytes] = self._opener.open(request, timeout=timeout)
            return reply
        except urllib.error.HTTPError as error:
            with error:
                raise RefusedError(error.code, _refusal(error, self.url + path)) from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise PenstockError(
                f"{self.url} cannot be reached: {cause(error)}; check the URL, and that the server "
                "runs"
            ) from None


def cause(error: BaseException) -> str:
    """Why a connection failed, in a line."""
    reason = getattr(error, "reason", None)
    if isinstance(reason, OSError):
        error = reason
    return getattr(error, "strerror", None) or first_line(error)


def message(body: Any) -> str:
    """The message in an error's body, whatever form the server gives it."""
    while isinstance(body, dict):
        inner = body.get("error") or body.get("message") or body.get("detail")
        if inner is None:
            break
        body = inner
    text = body if isinstance(body, str) else msgspec.json.encode(body).decode()
    return " ".join(text.split())[:500]


def _refusal(error: urllib.error.HTTPError, where: str) -> str:
    if 300 <= error.code < 400:
        to = error.headers.get("Location", "elsewhere")
        return f"{where} redirects to {to}; name that URL if it is the one you mean"
    try:
        text = message(decoded(error.read(_MAX_ERROR), Any))
    except (OSError, ValueError, http.client.HTTPException):
        text = error.reason if isinstance(error.reason, str) else ""
    return f"the server refused, with status {error.code}: {text}"
