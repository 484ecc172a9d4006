"""``GET /fleet/status``: what a router knows of its servers, as its page shows it."""

from __future__ import annotations

import os
import socket

import msgspec

from penstock.router.fleet import Fleet
from penstock.router.replica import Replica, State
from penstock.version import __version__


class ReplicaStatus(msgspec.Struct, frozen=True, kw_only=True):
    url: str
    host: str
    """The machine that it is on; empty where that is not known."""
    pid: int | None
    """Its process there, where that is known."""
    build: str
    """Equal where servers answer with the same bits; empty where that is not known."""
    state: State
    trouble: str
    """Why it is not ready."""
    models: list[str] | None
    """None where it does not say."""
    cache_followed: bool
    """Whether what its cache holds is known from its events."""
    prefill_tokens: int
    """Prompt tokens of requests of this router that are not computed yet."""
    decoding: int
    """Sequences of this router's requests that decode."""
    requests: int
    """That were sent to it, and of these:"""
    failures: int
    retries: int
    resumed_streams: int
    prompt_tokens: int
    prompt_tokens_cached: int
    """Expected in its cache."""


class FleetStatus(msgspec.Struct, frozen=True, kw_only=True):
    version: str
    router: str
    """The machine and the process that tell this: others know of their own requests alone."""
    policy: str
    open: int
    """Requests that are open."""
    waiting: int
    """Those of them without a server for now."""
    replicas: list[ReplicaStatus]


def fleet_status(fleet: Fleet, open_requests: int) -> FleetStatus:
    return FleetStatus(
        version=__version__,
        router=f"{socket.gethostname()}:{os.getpid()}",
        policy=fleet.options.policy,
        open=open_requests,
        waiting=fleet.waiting_requests,
        replicas=[_status(fleet, replica) for replica in fleet.replicas],
    )


def _status(fleet: Fleet, replica: Replica) -> ReplicaStatus:
    prefill, decoding = fleet.load(replica)
    counts, member = replica.counts, replica.member
    return ReplicaStatus(
        url=replica.url,
        host=member.host,
        pid=member.pid,
        build=member.build,
        state=replica.state,
        trouble=replica.trouble,
        models=None if replica.models is None else sorted(replica.models),
        cache_followed=replica.synchronized,
        prefill_tokens=prefill,
        decoding=decoding,
        requests=counts.requests,
        failures=counts.failures,
        retries=counts.retried,
        resumed_streams=counts.resumed,
        prompt_tokens=counts.prompt_tokens,
        prompt_tokens_cached=counts.cached_tokens,
    )
