"""What a role is put around: an engine's core, or in a simulation what stands in its place.

The cores of both roles know no clock, no thread and no socket: they are given what measures time,
what has come, and to whom to send.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Protocol, TypeVar

from penstock.cache.prefix import Key
from penstock.engine.stepped import Core
from penstock.interface.messages import EngineRequest

T_co = TypeVar("T_co", covariant=True)


class SteppedCore(Core, Protocol):
    """The part of :class:`penstock.engine.core.EngineCore` that a role drives."""

    @property
    def num_running(self) -> int: ...

    def check(self, request: EngineRequest) -> None: ...

    def holds(self, request_id: str) -> bool: ...


class Arrivals(Protocol[T_co]):
    """What has come from others, as :class:`penstock.engine.handover.inbox.Inbox` keeps it."""

    def __bool__(self) -> bool: ...

    def take(self, budget: int = 1 << 62) -> Sequence[T_co]: ...

    def close(self) -> None: ...


class Chain(Protocol):
    """Makes the keys of blocks, as :func:`penstock.cache.prefix.chain_keys`."""

    def __call__(
        self, salt: str, token_ids: array[int], count: int, block_size: int, /
    ) -> list[Key]: ...
