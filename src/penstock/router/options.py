"""The router's options."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.router.exchange import Timeouts
from penstock.routing.loads import LoadWeights
from penstock.routing.router import DEFAULT_POLICY
from penstock.server.hosts import HostRule
from penstock.server.options import BODY_TIMEOUT_S, MAX_BODY_BYTES


@dataclass(frozen=True)
class RouterOptions:
    policy: str = DEFAULT_POLICY
    weights: LoadWeights = LoadWeights()  # noqa: RUF009
    assumed_tokens: int = 1 << 19
    """Prompt tokens that the cache of a replica is assumed to keep, where it does not report."""
    probe_s: float = 2.0
    """Seconds between two looks at a replica."""
    wait_s: float = 0.0
    """Seconds for which a request of which nothing was answered waits for a replica where none can
    take it."""
    resume_s: float = 30.0
    """Seconds for which a stream that broke off waits for a replica that can go on with it."""
    resolve: bool = False
    """Whether each address that the name of a server has is a server of its own."""
    timeouts: Timeouts = Timeouts()  # noqa: RUF009
    max_body_bytes: int = MAX_BODY_BYTES
    body_timeout_s: float = BODY_TIMEOUT_S
    hosts: HostRule | None = None
    """Which Host headers are taken; None takes all."""
    cors_origins: tuple[str, ...] = ()
    """Origins whose pages may ask from a browser; "*" for all."""
