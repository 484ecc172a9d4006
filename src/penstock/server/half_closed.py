"""Clients that have shut down their sending side: detect whether they still read."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

LOOK_S = 0.1
FIRST_PROBE_S = 1.0
"""Seconds before the first probe; none is sent if the response is ready sooner."""

_TCP_CLOSE = 7  # tcp_state in the kernel's net/tcp_states.h: the peer reset the connection


class HalfClosed:
    """Watches a connection whose client has ended its side, for as long as it is answered.

    The end of a client's side looks the same whether it waits for the answer (``nc -N``) or has
    closed the connection. Writing tells: a fully closed peer sends RST. Then ``gone`` is called. A
    stream writes all the time. Where nothing has been written for a while, ``probe`` does: after
    one second, two more, four more and so on.
    """

    def __init__(
        self,
        transport: asyncio.Transport,
        probe: Callable[[], None],
        gone: Callable[[], None],
    ) -> None:
        self._socket = transport.get_extra_info("socket")
        self._probe = probe
        self._gone = gone
        self._loop = asyncio.get_running_loop()
        self._pause = FIRST_PROBE_S
        self._probe_at = self._loop.time() + FIRST_PROBE_S
        self._timer = self._loop.call_later(LOOK_S, self._look)

    def stop(self) -> None:
        self._timer.cancel()

    def _look(self) -> None:
        info = self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)
        if info[0] == _TCP_CLOSE:
            self._gone()
            return
        now = self._loop.time()
        if now >= self._probe_at:
            self._pause *= 2
            self._probe_at = now + self._pause
            self._probe()
        self._timer = self._loop.call_later(LOOK_S, self._look)
