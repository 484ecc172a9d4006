"""A request of a client: what is passed on, and what the router reads of it."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from penstock.router.exchange import Headers
from penstock.router.reading import read

_NONE = msgspec.Raw(b"")


class Body(msgspec.Struct):
    """What the router reads of a JSON object, each field as it is written, or nothing.

    What is of another type than it should be is for a replica to say something about, and the rest
    is read all the same.
    """

    model: msgspec.Raw = _NONE
    stream: msgspec.Raw = _NONE
    seed: msgspec.Raw = _NONE
    tools: msgspec.Raw = _NONE
    instructions: msgspec.Raw = _NONE
    system: msgspec.Raw = _NONE
    prompt: msgspec.Raw = _NONE
    messages: msgspec.Raw = _NONE
    input: msgspec.Raw = _NONE
    cache_salt: msgspec.Raw = _NONE
    prompt_cache_key: msgspec.Raw = _NONE
    safety_identifier: msgspec.Raw = _NONE
    user: msgspec.Raw = _NONE

    @classmethod
    def of(cls, data: bytes) -> Body | None:
        """None for what is no JSON object."""
        return read(data, cls)

    @property
    def streams(self) -> bool:
        return bytes(self.stream) == b"true"

    @property
    def has_seed(self) -> bool:
        """Whether it says anything about a seed but null."""
        return bytes(self.seed) not in (b"", b"null")

    @property
    def session(self) -> str | None:
        """What the client names the conversation by, or the user."""
        names = (self.prompt_cache_key, self.safety_identifier, self.user)
        return next((text for name in names if (text := text_of(name)) is not None), None)

    @property
    def prompt_parts(self) -> tuple[msgspec.Raw, ...]:
        """What its prompt is made of, in the order in which templates write it."""
        texts = self.instructions, self.system, self.prompt, self.messages, self.input
        return self.tools, *texts


def text_of(raw: msgspec.Raw) -> str | None:
    """The text that JSON holds; None for anything else."""
    return read(raw, str)


def with_seed(data: bytes, body: Body, seed: int) -> bytes:
    """``data``, of which ``body`` was read and which has no seed, with one; all else stays as it
    is, byte by byte."""
    if bytes(body.seed):  # it is null
        fields = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
        return msgspec.json.encode({**fields, "seed": seed})
    at = data.index(b"{") + 1
    comma = b"" if data[at:].lstrip(b" \t\r\n").startswith(b"}") else b","
    return b'%b"seed":%d%b%b' % (data[:at], seed, comma, data[at:])


@dataclass(frozen=True)
class Asked:
    """A request as it came."""

    method: str
    path: str
    target: str
    """Path and query as they came, with what is escaped in them."""
    headers: Headers
    data: bytes
    body: Body | None
    """None for what is no object of JSON."""
    model: str | None
    """The model that it is for; None where it names none."""
    session: str | None

    @property
    def streams(self) -> bool:
        return self.body is not None and self.body.streams
