"""A fleet on Ray under a load that rises and falls: how many servers there are, and whether each
stream ends with the bits that one server gives.

One client asks, then many, until there are as many servers as there may be, then one again, until
one server is left.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence

import msgspec

from service.failover import Clients, alone
from service.failover import Options as Asking
from service.ray_fleet import RayFleet, ray_fleet

_MOST_S = 240.0
"""Seconds after which a number of servers is not waited for any more."""
_LOOK_S = 0.25


class Options(msgspec.Struct, frozen=True):
    most: int
    """Servers, of which there is one at least."""
    sequences: float
    """That a server is meant to have."""
    clients: int
    """Streams at a time while there are many."""
    up_after_s: float
    down_after_s: float
    hold_s: float
    """Seconds for which the load stays once there are as many servers as it asks for."""
    seeds: int
    tokens: int


class Step(msgspec.Struct, frozen=True):
    """One part of the ramp."""

    clients: int
    begins_s: float
    servers: list[tuple[float, int]]
    """Each change of the number of servers that take requests: seconds since the part began, and
    the number then."""
    streams: int
    mean_stream_s: float
    """The mean time of a stream by the number of clients: those that ask, over streams a second."""


class Autoscale(msgspec.Struct, frozen=True, kw_only=True):
    options: Options
    steps: list[Step]
    streams: int
    equal: int
    different: int
    failed: int
    troubles: list[str]
    ok: bool


def measure(words: Sequence[str], options: Options) -> Autoscale:
    """``words``: options of the servers. Raises RuntimeError if nothing can be measured."""
    print("one server, which stays alone", file=sys.stderr)
    asking = Asking(0, 0, options.clients, 0.0, options.seeds, options.tokens)
    asked, expected = alone([*words, "--no-access-log"], asking)
    tables = (
        f"[replicas]\nmin = 1\nmax = {options.most}\ncpus = 1\n"
        f"[autoscaling]\nsequences = {options.sequences}\nup-after = {options.up_after_s}\n"
        f"down-after = {options.down_after_s}"
    )
    print("a fleet on Ray", file=sys.stderr)
    with ray_fleet(tables, words) as fleet:
        clients = Clients(fleet.url, expected, asked)
        clients.limit = 0
        clients.start(asking)
        began = time.monotonic()
        try:
            steps = [
                _step(fleet, clients, began, count, servers, options.hold_s)
                for count, servers in ((1, 1), (options.clients, options.most), (1, 1))
            ]
        finally:
            clients.stop()
    counts = clients.counts
    reached = [step.servers[-1][1] for step in steps] == [1, options.most, 1]
    return Autoscale(
        options=options,
        steps=steps,
        streams=counts.total(),
        equal=counts["equal"],
        different=counts["different"],
        failed=counts["failed"],
        troubles=clients.troubles,
        ok=reached and not clients.troubles and counts["equal"] == counts.total() > 0,
    )


def _step(
    fleet: RayFleet, clients: Clients, began: float, count: int, servers: int, hold_s: float
) -> Step:
    """So many clients ask until there are so many servers, and for a while longer."""
    begins, streams = time.monotonic(), clients.counts.total()
    clients.limit = count
    changes: list[tuple[float, int]] = []

    def look() -> int:
        number = len(fleet.servers())
        at = round(time.monotonic() - begins, 1)
        if not changes or changes[-1][1] != number:
            changes.append((at, number))
            print(f"  {count} clients, after {at} s: {number} servers", file=sys.stderr)
        return number

    _watch(lambda: look() == servers, _MOST_S)
    until = time.monotonic() + hold_s
    _watch(lambda: look() < 0 or time.monotonic() > until, _MOST_S)
    took, ended = time.monotonic() - begins, clients.counts.total() - streams
    mean = round(count * took / ended, 2) if ended else 0.0
    return Step(count, round(begins - began, 1), changes, ended, mean)


def _watch(condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
