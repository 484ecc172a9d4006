"""Switches of a server to another profile, and requests that wait for them."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import msgspec

from penstock.profile import ProfileOptions
from support.http_client import Server
from support.profiles import profile_of_another
from support.waiting import PATIENCE_S, until

BODY = {"model": "fake", "prompt": "abc", "max_tokens": 20}
CONTEXT = 5000
LONG = {**BODY, "max_tokens": 4000, "stream": True}
"""An answer that is longer than any test waits for."""


class Asked:
    """A request that a thread makes, so that the test goes on meanwhile."""

    def __init__(self, ask: Callable[[], httpx.Response]) -> None:
        self._found: list[httpx.Response | httpx.HTTPError] = []
        self._ask = ask
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._found.append(self._ask())
        except httpx.HTTPError as error:
            self._found.append(error)

    @property
    def waits(self) -> bool:
        """Whether there is no answer yet."""
        return self._thread.is_alive()

    def answer(self) -> httpx.Response:
        self._thread.join(PATIENCE_S)
        (found,) = self._found
        assert isinstance(found, httpx.Response), found
        return found

    def json(self, status: int = 200) -> Any:
        response = self.answer()
        assert response.status_code == status, response.text
        return response.json()


def profile(made: str = "2026-02-02T00:00:00+00:00", **options: Any) -> dict[str, Any]:
    """A profile with these options, as JSON."""
    found = profile_of_another(ProfileOptions(**options), made=made)
    decoded: dict[str, Any] = json.loads(msgspec.json.encode(found))
    return decoded


def switch(server: Server, body: dict[str, Any], within_s: float | None = 0) -> httpx.Response:
    within = {} if within_s is None else {"within_s": within_s}
    return server.admin("profile", {"profile": body, **within})


def switching(server: Server, body: dict[str, Any], within_s: float | None = 0) -> Asked:
    """Begin a switch; returns when it is pending, or has failed or ended already.

    After ``within_s`` seconds new requests are held; None: after the server's default.
    """
    asked = Asked(lambda: switch(server, body, within_s))
    until(lambda: pending(server) or not asked.waits, PATIENCE_S, "pending")
    return asked


def pending(server: Server) -> dict[str, Any] | None:
    """What the server says of the pending switch."""
    found: dict[str, Any] | None = server.status()["profile"]["pending"]
    return found


def phase(server: Server, name: str) -> None:
    """Wait until the pending switch is in this phase."""
    until(lambda: (pending(server) or {}).get("phase") == name, PATIENCE_S, name)


def held(server: Server, number: int) -> None:
    """Wait until the pending switch holds so many requests."""
    try:
        until(lambda: (pending(server) or {}).get("held") == number, PATIENCE_S, "held")
    except AssertionError:
        raise AssertionError(f"{number} are not held, as {server.status()} shows") from None


def complete(server: Server, **fields: Any) -> Asked:
    return Asked(lambda: server.post("/v1/completions", {**BODY, **fields}))


@contextlib.contextmanager
def stream(server: Server) -> Iterator[Iterator[bytes]]:
    """A long answer that has begun."""
    with server.http.stream("POST", "/v1/completions", json=LONG) as response:
        parts = response.iter_bytes()
        yield iter([next(parts)])
