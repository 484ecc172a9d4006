"""What the memory of many open streams is, in the process that speaks HTTP and in the engine's."""

from __future__ import annotations

import random
import select
import socket
import sys
import time

import msgspec

from penstock.bench.processes import descriptors, resident_mib
from service.client import post
from service.process import HOST, Served, serving, until

PROMPT, CONTEXT = 16, 1024
CACHE_MIB = 512
WARM_UP = 32
"""Streams that come and go before, so that code and tables have been loaded."""
BEGIN_S, END_S = 300.0, 120.0


class Streams(msgspec.Struct, frozen=True, kw_only=True):
    streams: int
    """That were open at once, each with text received and most of it to come."""
    front_mib: float
    """MiB by which the memory of the process that speaks HTTP grew."""
    engine_mib: float
    """MiB by which the engine's grew, ``kv_mib`` aside."""
    kv_mib: float
    """Keys and values of the streams: of a budget that the engine has whether it is used or not."""
    total_mib: float
    kib_per_stream: float
    """KiB of both processes for each stream."""
    front_mib_afterwards: float
    """Still more than before, once all had been closed."""
    files_afterwards: int
    """Open files beyond those before."""


def measure(count: int, threads: int) -> Streams:
    """Raises RuntimeError if a stream does not begin."""
    flags = ["--threads", str(threads), "--max-num-seqs", str(count), "--no-access-log"]
    flags += ["--max-model-len", str(CONTEXT), "--kv-cache-bytes", f"{CACHE_MIB}MiB"]
    with serving(flags) as server:
        _close(server, _opened(server, WARM_UP, PROMPT))
        front, engine = resident_mib(server.pid), resident_mib(server.engine_pid)
        files = descriptors(server.pid)
        began = time.monotonic()
        sockets = _opened(server, count, PROMPT)
        print(f"  {count} streams in {time.monotonic() - began:.1f} s", file=sys.stderr)
        kv = server.metric("kv_cache_usage_perc") * CACHE_MIB
        front_open, engine_open = resident_mib(server.pid), resident_mib(server.engine_pid)
        still = len(server.status()["requests"])
        if still < count:
            raise RuntimeError(f"only {still} of {count} streams were open at once")
        _close(server, sockets)
        grown, engine_grown = front_open - front, engine_open - engine - kv
        return Streams(
            streams=count,
            front_mib=grown,
            engine_mib=engine_grown,
            kv_mib=kv,
            total_mib=grown + engine_grown,
            kib_per_stream=(grown + engine_grown) * 1024 / count,
            front_mib_afterwards=resident_mib(server.pid) - front,
            files_afterwards=descriptors(server.pid) - files,
        )


def _opened(server: Served, count: int, length: int) -> list[socket.socket]:
    """Streams that have all begun to answer; their prompts have ``length`` tokens."""
    generator = random.Random(count)
    sockets = []
    with select.epoll() as poll:
        for _ in range(count):
            sock = socket.create_connection((HOST, server.port), 60)
            sockets.append(sock)
            poll.register(sock.fileno(), select.EPOLLIN)
            prompt = [generator.randrange(4096) for _ in range(length)]
            sock.sendall(post(server.model, prompt, CONTEXT - length))
        by_descriptor = {sock.fileno(): sock for sock in sockets}
        heads = dict.fromkeys(by_descriptor, b"")
        waiting = set(by_descriptor)
        deadline = time.monotonic() + BEGIN_S
        while waiting:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{len(waiting)} streams have not begun in {BEGIN_S:g} s")
            for descriptor, _ in poll.poll(1.0):
                data = by_descriptor[descriptor].recv(1 << 16)
                if not data:
                    raise RuntimeError(f"a stream ended: {heads[descriptor][-300:]!r}")
                if descriptor in waiting:
                    heads[descriptor] += data
                    if b'"text":' in heads[descriptor]:
                        waiting.discard(descriptor)
    return sockets


def _close(server: Served, sockets: list[socket.socket]) -> None:
    for sock in sockets:
        sock.close()
    until(lambda: not server.status()["requests"], END_S, "streams without clients end")
    until(lambda: not server.metric("num_requests_running"), END_S, "the engine is idle")
