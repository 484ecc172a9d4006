"""Where requests come in: the router of ``penstock route``, within an actor of Ray Serve's."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection
from typing import Any, Final

from ray.serve.handle import DeploymentHandle
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.deploy.config import DeployConfig
from penstock.deploy.directory import DIRECTORY
from penstock.deploy.tables import Routing
from penstock.router.app import build_app
from penstock.router.fleet import Fleet
from penstock.router.members import Members
from penstock.router.options import RouterOptions
from penstock.router.replica import Member
from penstock.routing.loads import LoadWeights
from penstock.server.hosts import HostRule
from penstock.server.logs import LogOptions, logging_to
from penstock.server.open_requests import REQUEST_ID, OpenRequests

_LOOK_S: Final = 0.5
"""Seconds between two looks for requests that wait while there is no replica."""


class IngressActor:
    """What Ray calls of the ingress."""

    async def __init__(  # type: ignore[misc]  # Ray awaits it
        self, tables: dict[str, Any], replicas: DeploymentHandle[Any]
    ) -> None:
        """``tables``: those of the configuration."""
        config = DeployConfig.of(tables)
        routing = config.routing
        self._stack = contextlib.ExitStack()
        self._stack.enter_context(logging_to(LogOptions(access=routing.access_log)))
        self._replicas = replicas
        self._fleet = Fleet(router_options(routing))
        self._members = Members(self._fleet)
        self._requests = OpenRequests(routing.request_timeout)
        loop = asyncio.get_running_loop()

        def told(members: Collection[Member]) -> None:
            loop.call_soon_threadsafe(self._members.set, members)

        DIRECTORY.follow(config.name, told)
        self._waking = asyncio.ensure_future(self._wake())

    def __serve_build_asgi_app__(self) -> ASGIApp:
        return _unnamed(build_app(self._fleet, self._requests))

    async def _wake(self) -> None:
        """Call a replica now, which has Ray tell of them here, and whenever a request waits for one
        while there is none, which has Ray start one."""
        while True:
            with contextlib.suppress(Exception):  # whatever Ray says: the next look asks again
                await self._replicas.wake.remote()
            while self._fleet.replicas or not self._fleet.waiting_requests:
                await asyncio.sleep(_LOOK_S)

    async def __del__(self) -> None:
        self._waking.cancel()
        await self._members.aclose()
        self._fleet.close()
        self._stack.close()


def _unnamed(app: ASGIApp) -> ASGIApp:
    """The application without the ids of requests in its answers: Ray's proxies, which have given
    them, put them there."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [h for h in message.get("headers", ()) if h[0] != REQUEST_ID.encode()]
                message = {**message, "headers": headers}
            await send(message)

        await app(scope, receive, sent)

    return answer


def router_options(routing: Routing) -> RouterOptions:
    return RouterOptions(
        policy=routing.policy,
        weights=LoadWeights(
            decode_tokens=routing.decode_tokens, uncached=routing.uncached, lost=routing.lost
        ),
        wait_s=routing.wait,
        resume_s=routing.wait or RouterOptions().resume_s,
        hosts=HostRule.of(routing.host, _address(routing.host), routing.allowed_hosts, False),
    )


def _address(host: str) -> str:
    """An address for a name, by which only loopback is told from others."""
    return {"localhost": "127.0.0.1"}.get(host, host)
