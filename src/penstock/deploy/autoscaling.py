"""How many replicas there should be, by what they do now. No clock, no Ray: data in, a number out.

Two things ask for more. The *load*: sequences that run and that wait, divided by as many as a
replica is meant to have. And the *service level*: where too few of the requests of a while kept to
it, there is one more for each of ten replicas that the share is short of, since nobody knows by how
much too slow a machine is from how often it was. That helps only where there are sequences to
spread, so it never asks for more replicas than there are sequences; and what is judged has to be
younger than the last step, so it asks once in a window.

Fewer are enough if they would have three quarters of the load that they are meant for, so that the
next request does not ask for the replica that just ended, and while the service level is kept.
How long either must be wanted is not decided here: Ray applies ``up_after`` and ``down_after``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

FEWEST_JUDGED: Final = 10
"""Requests in a window by which a share is known."""
_ROOM: Final = 0.75
"""The part of a replica's load up to which fewer replicas are filled."""


@dataclass(frozen=True)
class Goals:
    sequences: float
    """Sequences that a replica is meant to have."""
    goodput: float | None
    """The share of requests that are to keep to the service level; None where there is none."""
    window_s: float
    """Seconds of requests that are judged."""


@dataclass(frozen=True)
class Figures:
    """What one replica tells."""

    running: float = 0.0
    waiting: float = 0.0
    """Sequences."""
    judged: float = 0.0
    """Requests of the window that were answered, failed or were refused."""
    met: float = 0.0
    """Those of them that were answered within the service level."""


def wanted(
    goals: Goals, told: Sequence[Figures], silent: int, replicas: int, since_up_s: float
) -> int:
    """The number of replicas that should be there, not yet between the least and the most.

    ``silent`` replicas tell nothing yet. ``replicas`` is the number that there is to be now, and
    ``since_up_s`` the time since it last grew.
    """
    load = sum(each.running + each.waiting for each in told)
    by_load = math.ceil(load / goals.sequences)
    judged, met = sum(each.judged for each in told), sum(each.met for each in told)
    short = 0.0
    if goals.goodput is not None and judged >= FEWEST_JUDGED:
        short = max(0.0, goals.goodput - met / judged)
    by_level = replicas
    if short and since_up_s >= goals.window_s:
        by_level = min(replicas + max(1, math.ceil(replicas * short)), math.floor(load))
    if (most := max(by_load, by_level)) > replicas:
        return most
    fewer = math.ceil(load / (goals.sequences * _ROOM))
    if silent or short or fewer >= replicas:
        return replicas
    return fewer
