"""Messages over a stream socket that may lead to another host: framed, sealed and of limited size.

A frame is a header and a message as msgpack. The header has a magic number, the version of this
format, the size of the message, and its seal: a keyed BLAKE2b digest of the frame's number, its
direction and the message. So damage is noticed, and a lost, repeated or reflected frame; and with a
key that both ends have agreed on (``handshake.py``) a frame by anybody else. Nothing executable
crosses: a malformed frame can only raise :class:`~penstock.processes.frames.WireError`.
"""

from __future__ import annotations

import hashlib
import hmac
import socket
import struct
import threading
from typing import Any, Final, Generic, Literal, TypeVar

import msgspec

from penstock.processes.frames import PIECE_BYTES, WireError

MAGIC: Final = b"PSTG"
VERSION: Final = 1
"""The version of frames and messages. Peers of another one are refused, by the first frame."""
MAX_MESSAGE_BYTES: Final = 1 << 31
"""Largest message: what a stage hands on of 8,192 tokens takes 256 MiB at 8,192 columns."""

_HEADER: Final = struct.Struct("<4sHHQ")
_SEAL_BYTES: Final = 16
_NUMBER: Final = struct.Struct("<QB")

Side = Literal["engine", "stage"]
Message = TypeVar("Message")


class Channel(Generic[Message]):
    """One end of a connection, that of the engine or that of a stage.

    Any thread may send; one at a time receives. What has failed once, fails ever after.
    """

    def __init__(
        self,
        sock: socket.socket,
        side: Side,
        kind: Any,
        *,
        key: bytes = b"",
        limit: int = MAX_MESSAGE_BYTES,
    ) -> None:
        """``kind``: the type of the messages that come. ``limit``: the bytes of the largest."""
        self._sock = sock
        self._own, self._other = (0, 1) if side == "engine" else (1, 0)
        self._key = key
        self._limit = limit
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(kind)
        self._sending = threading.Lock()
        self._sent = 0
        self._received = 0

    def send(self, message: msgspec.Struct) -> None:
        """Send one message. Raises WireError if it is too large, and OSError if the connection
        fails or the peer takes in nothing for the socket's time limit."""
        body = self._encoder.encode(message)
        if len(body) > MAX_MESSAGE_BYTES:
            raise WireError(
                f"a {type(message).__name__} message takes {len(body)} bytes, more than the "
                f"{MAX_MESSAGE_BYTES} that one frame may hold"
            )
        with self._sending:
            seal = self._seal(self._sent, self._own, body)
            self._sent += 1
            header = _HEADER.pack(MAGIC, VERSION, 0, len(body)) + seal
            if len(body) < PIECE_BYTES:
                self._sock.sendall(header + body)
            else:
                self._sock.sendall(header)
                self._sock.sendall(body)

    def receive(self) -> Message | None:
        """Return the next message; None at the end of the stream.

        Raises WireError on a frame that is none of ours, damaged, cut off or too large,
        TimeoutError where nothing comes for the socket's time limit, and OSError if the connection
        fails.
        """
        header = self._exactly(_HEADER.size + _SEAL_BYTES, at_start=True)
        if header is None:
            return None
        magic, version, flags, size = _HEADER.unpack_from(header)
        if magic != MAGIC:
            raise WireError(f"the peer is no stage of a pipeline: it sends {bytes(header[:16])!r}")
        if version != VERSION:
            raise WireError(
                f"the peer speaks version {version} of the stages' protocol, and this is version "
                f"{VERSION}; run the same version of Penstock on both hosts"
            )
        if flags:
            raise WireError(f"a frame has flags {flags:#x}, and none are known")
        if size > self._limit:
            raise WireError(f"a frame announces {size} bytes, more than {self._limit}")
        body = self._exactly(size, at_start=False)
        assert body is not None
        seal = self._seal(self._received, self._other, body)
        self._received += 1
        if not hmac.compare_digest(seal, bytes(header[_HEADER.size :])):
            raise WireError(
                f"a frame of {size} bytes is damaged, out of order, or not the peer's: its "
                "checksum is wrong"
            )
        try:
            return self._decoder.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise WireError(f"a frame of {size} bytes holds no known message: {error}") from None

    def rekeyed(self, key: bytes, kind: Any) -> Channel[Any]:
        """Return the channel that goes on with another key, other messages, and the largest size;
        this one is not used any more."""
        return Channel(self._sock, "engine" if self._own == 0 else "stage", kind, key=key)

    def shutdown(self) -> None:
        """Have both ends find the end of the stream. From any thread."""
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:  # it is closed, or the other end is gone
            return

    def finish(self) -> None:
        """Tell the peer that nothing more is sent."""
        try:
            self._sock.shutdown(socket.SHUT_WR)
        except OSError:
            return

    def close(self) -> None:
        self._sock.close()

    def _seal(self, number: int, direction: int, body: bytes | bytearray) -> bytes:
        seal = hashlib.blake2b(
            _NUMBER.pack(number, direction), digest_size=_SEAL_BYTES, key=self._key
        )
        seal.update(body)
        return seal.digest()

    def _exactly(self, size: int, *, at_start: bool) -> bytearray | None:
        data = bytearray()
        while len(data) < size:
            piece = self._sock.recv(min(size - len(data), PIECE_BYTES))
            if not piece:
                if at_start and not data:
                    return None
                raise WireError("the connection ended within a frame")
            data += piece
        return data
