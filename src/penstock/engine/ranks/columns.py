"""A Collective of processes that are connected by sockets: slow, and for any backend."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from penstock.interface.collective import WAIT_S

_HEADER: Final = struct.Struct("<QQ")
"""Numbers of the rows and columns that follow."""


class SocketRank:
    """One rank of a group, each of which is connected to rank 0: it receives what the others have,
    and sends all of it to each."""

    def __init__(self, rank: int, world: int, sockets: Sequence[socket.socket]) -> None:
        """``sockets``: those to ranks 1, 2 and so on for rank 0, and that to rank 0 for others."""
        self.rank = rank
        self.world = world
        self._sockets = sockets
        self._changing = threading.Lock()
        self._given_up = False
        self._calls: list[Callable[[], None]] = []
        for sock in sockets:
            sock.settimeout(WAIT_S)

    def all_gather(self, columns: NDArray[Any]) -> Sequence[NDArray[Any]]:
        own = np.ascontiguousarray(columns)
        with self._failing():
            parts = self._to_first(own)
            if parts is None:
                (hub,) = self._sockets
                return [_receive(hub, own) for _ in range(self.world)]
            for sock in self._sockets:
                for part in parts:
                    _send(sock, part)
        return parts

    def gather_to_first(self, columns: NDArray[Any]) -> Sequence[NDArray[Any]] | None:
        with self._failing():
            return self._to_first(np.ascontiguousarray(columns))

    def _to_first(self, own: NDArray[Any]) -> Sequence[NDArray[Any]] | None:
        if self.rank:
            (hub,) = self._sockets
            _send(hub, own)
            return None
        return [own, *(_receive(sock, own) for sock in self._sockets)]

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise RuntimeError(f"rank {self.rank} waits for ranks that have failed") from error

    def when_given_up(self, call: Callable[[], None]) -> None:
        with self._changing:
            self._calls.append(call)
            given_up = self._given_up
        if given_up:
            call()

    def give_up(self) -> None:
        """Have whoever waits for columns fail. From any thread."""
        with self._changing:
            calls, self._given_up = self._calls[:], True
        for call in calls:
            call()
        for sock in self._sockets:
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:  # the other end is gone
                continue

    def close(self) -> None:
        for sock in self._sockets:
            sock.close()


def _send(sock: socket.socket, columns: NDArray[Any]) -> None:
    sock.sendall(_HEADER.pack(*columns.shape))
    sock.sendall(columns.tobytes())


def _receive(sock: socket.socket, like: NDArray[Any]) -> NDArray[Any]:
    """The next columns, of the type of ``like`` and as many rows."""
    rows, cols = _HEADER.unpack(_exactly(sock, _HEADER.size))
    if rows != len(like):
        raise ConnectionError(f"columns have {rows} rows, and {len(like)} are expected")
    data = np.frombuffer(_exactly(sock, rows * cols * like.itemsize), like.dtype)
    return data.reshape(rows, cols)


def _exactly(sock: socket.socket, size: int) -> bytearray:
    data = bytearray(size)
    with memoryview(data) as view:
        done = 0
        while done < size:
            count = sock.recv_into(view[done:])
            if count == 0:
                raise ConnectionError("the other rank has ended")
            done += count
    return data
