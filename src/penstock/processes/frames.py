"""Frames of a stream socket: a little-endian uint32 byte count, then one message as msgpack.

Nothing executable crosses: a malformed frame can only raise :class:`WireError`.
"""

from __future__ import annotations

import socket
import struct
from typing import Any, Generic, TypeVar

import msgspec

from penstock.errors import PenstockError

HEADER = struct.Struct("<I")
LARGEST = (1 << 32) - 1
"""Largest message in bytes that a header can announce."""
PIECE_BYTES = 1 << 20
"""Bytes that are asked of a socket at once."""

Message = TypeVar("Message")

_encoder = msgspec.msgpack.Encoder()


class WireError(PenstockError):
    """A frame that is too long, truncated, or holds no known message."""


def encode(message: msgspec.Struct, limit: int = LARGEST) -> bytes:
    """Return one whole frame.

    Raises WireError if the message takes more than ``limit`` bytes, and UnicodeEncodeError if it
    holds a lone surrogate.
    """
    buffer = bytearray(HEADER.size)
    _encoder.encode_into(message, buffer, HEADER.size)
    size = len(buffer) - HEADER.size
    if size > limit:
        raise WireError(
            f"a {type(message).__name__} message takes {size} bytes, more than the {limit} that "
            "one frame may hold"
        )
    HEADER.pack_into(buffer, 0, size)
    return bytes(buffer)


class FrameReader(Generic[Message]):
    """Turns received bytes, in pieces of any size, into messages of the type ``kind``."""

    def __init__(self, kind: Any, limit: int = LARGEST) -> None:
        self._decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(kind)
        self._limit = limit
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Message]:
        """Return the messages that ``data`` completes, in order. Raises WireError."""
        self._buffer += data
        complete: list[Message] = []
        start = 0
        with memoryview(self._buffer) as view:
            while len(view) - start >= HEADER.size:
                (size,) = HEADER.unpack_from(view, start)
                if size > self._limit:
                    raise WireError(f"a frame announces {size} bytes, more than {self._limit}")
                body = start + HEADER.size
                if len(view) - body < size:
                    break
                complete.append(self._decode(view[body : body + size]))
                start = body + size
        del self._buffer[:start]
        return complete

    def receive(self, sock: socket.socket) -> list[Message]:
        """Return the next messages from a blocking socket; none at the end of the stream.

        Raises WireError, and OSError if the connection fails.
        """
        while data := sock.recv(PIECE_BYTES):
            messages = self.feed(data)
            if messages:
                return messages
        return []

    @property
    def in_frame(self) -> bool:
        """Whether the bytes so far end inside a frame, so that an end of stream cuts it off."""
        return bool(self._buffer)

    def _decode(self, body: memoryview) -> Message:
        try:
            return self._decoder.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise WireError(
                f"a frame of {len(body)} bytes holds no known message: {error}"
            ) from None
