"""Waking whoever waits for a socket."""

from __future__ import annotations

import os
import select
import socket
import threading

from support.waiting import PATIENCE_S

from penstock.engine.ipc.wire import FrameSocket, StatsQuery, encode_frame
from penstock.processes.wake import Wake


def readable(wake: Wake) -> bool:
    return bool(select.select([wake.fd], [], [], 0)[0])


def test_it_is_readable_until_it_is_cleared() -> None:
    wake = Wake()
    assert not readable(wake)
    wake.clear()
    for _ in range(100_000):  # more than a pipe holds
        wake.set()
    assert readable(wake)
    wake.clear()
    assert not readable(wake)
    fd = wake.fd
    del wake
    try:
        os.fstat(fd)
    except OSError:
        return
    raise AssertionError("the pipe stays open")


def test_a_receiver_wakes_and_loses_no_message() -> None:
    ours, theirs = socket.socketpair()
    frames, wake = FrameSocket(theirs), Wake()
    with ours, theirs:
        timer = threading.Timer(0.02, wake.set)
        timer.start()
        assert frames.receive(True, wake) == []
        timer.join(PATIENCE_S)
        wake.set()
        ours.sendall(encode_frame(StatsQuery(1)))
        assert frames.receive(True, wake) == [StatsQuery(1)]
        timer = threading.Timer(0.02, ours.sendall, [encode_frame(StatsQuery(2))])
        timer.start()
        assert frames.receive(True, wake) == [StatsQuery(2)]
        ours.close()
        assert frames.receive(True, wake) is None
