"""A server that says again what was recorded, at the same pace: what do the clients cost alone?

Standard input has one JSON line, :class:`Record`; standard output has the port.
"""

from __future__ import annotations

import socket
import sys
import time

import msgspec

from service.client import Reply


class Piece(msgspec.Struct, array_like=True):
    at: float  # seconds after the first request
    connection: int
    data: bytes


class Record(msgspec.Struct):
    connections: int
    pieces: list[Piece]  # in order of time


def record(replies: list[Reply]) -> Record:
    began = min(reply.began for reply in replies)
    pieces = [
        Piece(at - began, i, data)
        for i, reply in enumerate(replies)
        for at, data in zip(reply.times, reply.pieces, strict=True)
    ]
    return Record(len(replies), sorted(pieces, key=lambda piece: piece.at))


def main() -> None:
    record = msgspec.json.decode(sys.stdin.buffer.readline(), type=Record)
    with socket.create_server(("127.0.0.1", 0), backlog=record.connections) as listener:
        print(listener.getsockname()[1], flush=True)
        connections = [listener.accept()[0] for _ in range(record.connections)]
    for connection in connections:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.recv(1 << 20)
    began = time.monotonic()
    for piece in record.pieces:
        wait = began + piece.at - time.monotonic()
        if wait > 0:
            time.sleep(wait)
        connections[piece.connection].sendall(piece.data)


if __name__ == "__main__":
    main()
