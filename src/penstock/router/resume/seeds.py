"""Where a request says its seed.

A stream that may have to be made again needs one: of a request that has none the router adds its
own, and leaves all else of the body as it is, byte by byte where it can.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import msgspec

from penstock.router.asked import Body
from penstock.router.reading import read

_ABSENT: Final = (b"", b"null")
_NONE: Final = msgspec.Raw(b"")


@dataclass(frozen=True)
class SeedPlace:
    """The field ``seed``: of the body, or of the object that is its field ``within``."""

    within: str = ""
    drawn: bytes = b"null"
    """A value that means the same as null: the server draws one."""

    def is_given(self, body: Body) -> bool:
        """Whether a body says anything about a seed but that it is to be drawn."""
        holder: Body | _Seeds | None = body
        if self.within:
            holder = read(getattr(body, self.within) or b"null", _Seeds)
        return holder is not None and bytes(holder.seed) not in (*_ABSENT, self.drawn)

    def put(self, data: bytes, seed: int) -> bytes:
        """``data``, a body that gives no seed, with one."""
        if not self.within:
            return _with_seed(data, seed)
        fields = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
        holder = bytes(fields.get(self.within, b""))
        if holder in _ABSENT:
            holder = b"{}"
        if not holder.startswith(b"{"):
            return data  # the replica says what is wrong with it
        return msgspec.json.encode({**fields, self.within: msgspec.Raw(_with_seed(holder, seed))})


class TextSeedPlace(SeedPlace):
    """KServe's: by two names, in the body and in two objects of it, one of which may be JSON in a
    text."""

    def is_given(self, body: Body) -> bool:
        return any(
            bytes(seed) not in _ABSENT
            for holder in self._holders(body)
            for seed in (holder.seed, holder.random_seed)
        )

    @staticmethod
    def _holders(body: Body) -> Iterator[Body | _Seeds]:
        yield body
        for raw in (body.parameters, body.sampling_parameters):
            text = read(raw, str)
            holder = read(raw if text is None else text.encode(), _Seeds)
            if holder is not None:
                yield holder


class _Seeds(msgspec.Struct):
    seed: msgspec.Raw = _NONE
    random_seed: msgspec.Raw = _NONE


def _with_seed(data: bytes, seed: int) -> bytes:
    """An object of JSON whose ``seed``, if it has one, says nothing, with this one."""
    found = msgspec.json.decode(data, type=_Seeds)
    if bytes(found.seed):
        fields = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
        return msgspec.json.encode({**fields, "seed": seed})
    at = data.index(b"{") + 1
    comma = b"" if data[at:].lstrip(b" \t\r\n").startswith(b"}") else b","
    return b'%b"seed":%d%b%b' % (data[:at], seed, comma, data[at:])
