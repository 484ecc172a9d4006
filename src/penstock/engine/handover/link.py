"""Frames on a TCP connection: a message of bounded size, the bytes that go with it, and a tag.

A frame is a little-endian uint32, the size of the message; the message as msgpack; for ``Blocks``
as many bytes as its blocks have; and 16 bytes of BLAKE2b over the frame's number, the message and,
once both sides have proved to have a key, the bytes that go with it, keyed by a key of the
connection and direction. Without a key the tag is a checksum of the message, whose checksums vouch
for the bytes. So a frame that is damaged, repeated, left out or made by somebody else ends the
connection. Nothing is encrypted.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, Final

import msgspec
import numpy as np

from penstock.engine.handover.wire import MESSAGE_BYTES, PIECE_BYTES, Blocks, Message
from penstock.interface.blocks import Bytes
from penstock.processes.frames import WireError

_SIZE: Final = struct.Struct("<I")
_NUMBER: Final = struct.Struct("<Q")
_TAG_BYTES: Final = 16


class LinkEndedError(Exception):
    """The other side has closed the connection, between two frames."""


class Link:
    """One end. One thread sends and one receives; any may close it."""

    def __init__(self, sock: socket.socket, receives: Any, most_bytes: int = MESSAGE_BYTES) -> None:
        """``receives``: the union of messages of the other side, of at most ``most_bytes``."""
        self._socket = sock
        self._decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(receives)
        self._most_bytes = most_bytes
        self._encoder = msgspec.msgpack.Encoder()
        self._keys: tuple[bytes, bytes] = (b"", b"")  # of what is sent, and received
        self._sent = self._received = 0
        self.group_bytes: Sequence[int] = ()
        """Bytes of a block of each group of layers, which say how many bytes go with ``Blocks``."""
        self.content_s = 0.0
        """Seconds that the bytes took which came with the last message that had some."""
        self._closing = threading.Lock()

    def secure(self, sends: bytes, receives: bytes) -> None:
        """Key the tags of all frames that follow."""
        self._keys = (sends, receives)

    def set_timeout(self, seconds: float | None) -> None:
        """How long to wait for any byte; TimeoutError is raised then."""
        self._socket.settimeout(seconds)

    def send(self, message: Message, content: Bytes | None = None) -> None:
        """Raises OSError."""
        body = self._encoder.encode(message)
        tag = _tag(self._keys[0], self._sent, body, content)
        self._sent += 1
        if content is None:
            self._socket.sendall(_SIZE.pack(len(body)) + body + tag)
            return
        self._socket.sendall(_SIZE.pack(len(body)) + body)
        self._socket.sendall(content.data)
        self._socket.sendall(tag)

    def receive(self) -> tuple[Any, Bytes | None]:
        """The next message, and the bytes that go with it.

        Raises LinkEndedError at the end of the stream, OSError, and WireError for what is no frame
        of the other side.
        """
        (size,) = _SIZE.unpack(self._exactly(_SIZE.size, at_start=True))
        if size > self._most_bytes:
            raise WireError(f"a frame announces {size} bytes, more than {self._most_bytes}")
        body = self._exactly(size)
        try:
            message = self._decoder.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise WireError(f"a frame of {size} bytes holds no known message: {error}") from None
        content = None
        if isinstance(message, Blocks):
            if not 0 <= message.group < len(self.group_bytes):
                raise WireError(f"there is no group {message.group} of layers")
            each = self.group_bytes[message.group]
            if len(message.checksums) * each > max(PIECE_BYTES, each):
                raise WireError(f"{len(message.checksums)} blocks of {each} bytes come at once")
            content = np.empty(len(message.checksums) * each, np.uint8)
            began = time.perf_counter()
            self._fill(content.data)
            self.content_s = time.perf_counter() - began
        tag = self._exactly(_TAG_BYTES)
        if tag != _tag(self._keys[1], self._received, body, content):
            raise WireError("a frame's tag is not that of its content")
        self._received += 1
        return message, content

    def close(self) -> None:
        """End the connection; whoever waits for it gets an error."""
        with self._closing:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            self._socket.close()

    def _exactly(self, size: int, at_start: bool = False) -> bytes:
        data = bytearray(size)
        self._fill(memoryview(data), at_start)
        return bytes(data)

    def _fill(self, view: memoryview, at_start: bool = False) -> None:
        filled = 0
        while filled < len(view):
            count = self._socket.recv_into(view[filled:])
            if count == 0:
                if at_start and filled == 0:
                    raise LinkEndedError("the connection was closed")
                raise WireError("the connection ended inside a frame")
            filled += count


def _tag(key: bytes, number: int, body: bytes, content: Bytes | None) -> bytes:
    tag = blake2b(_NUMBER.pack(number), key=key, digest_size=_TAG_BYTES)
    tag.update(body)
    if key and content is not None:
        tag.update(content.data)
    return tag.digest()
