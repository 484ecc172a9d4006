"""What a request asks a cache for.

Caches find blocks by hashes of tokens, so exact keys take the model's tokenizer, its chat template,
and the rules by which a server makes a prompt of a body. The router has none of these. It asks one
of Penstock's servers for the keys (``POST /admin/cache/keys``, each in turn), which makes them by
the code that will make the prompt; that costs a round trip and a second tokenizing, which the
servers share, and can never be out of step with what they do. Where no replica can be asked, and
for those that do not report their caches, prompts are compared by their text: pieces of
``PIECE_BYTES`` bytes, each named by a hash of all bytes up to its end.
"""

from __future__ import annotations

from hashlib import blake2b
from itertools import count
from typing import Any, Final
from urllib.parse import quote

import msgspec

from penstock.router.exchange import Headers, Timeouts, UpstreamError
from penstock.router.fleet import TEXT_TOKENS, Fleet
from penstock.router.follower import KEY_BYTES, split_keys
from penstock.router.replica import Replica
from penstock.routing.query import Chain, Query

PIECE_BYTES: Final = 256
"""Bytes of text of a piece; four of them count as a token."""
_MOST_PIECES: Final = 4096
"""Pieces that are looked at: those of a MiB."""
_BYTES_PER_TOKEN: Final = PIECE_BYTES // TEXT_TOKENS
KEYED: Final = ("/v1/completions", "/v1/chat/completions", "/v1/responses")
_PATIENCE: Final = Timeouts(connect=1.0, head=5.0, idle=5.0)
_NO_KEYS: Final = Chain((), 1)


class Body(msgspec.Struct):
    """What the router reads of a request; all else passes unread."""

    model: str | None = None
    stream: bool | None = None
    seed: int | float | None = None
    prompt: msgspec.Raw = msgspec.Raw(b"")
    messages: msgspec.Raw = msgspec.Raw(b"")
    input: msgspec.Raw = msgspec.Raw(b"")
    instructions: msgspec.Raw = msgspec.Raw(b"")
    tools: msgspec.Raw = msgspec.Raw(b"")
    cache_salt: str | None = None
    prompt_cache_key: str | None = None
    user: str | None = None


class _Keys(msgspec.Struct):
    block_size: int
    prompt_tokens: int
    keys: bytes


class Prompts:
    """Makes queries of requests."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._turn = count()
        self.asked = 0
        """Prompts whose keys a replica was asked for."""
        self.unanswered = 0
        """Those of them for which none came."""

    async def query(
        self, path: str, data: bytes, body: Body, among: int, session: str | None
    ) -> Query:
        """The query for a request that one of a set of replicas will get."""
        replicas = self._fleet.of(among)
        reporting = [replica for replica in replicas if replica.synchronized]
        size = sum(len(memoryview(part)) for part in _text(body))
        blocks, tokens = _NO_KEYS, max(size // _BYTES_PER_TOKEN, 1)
        if reporting and path in KEYED and len(replicas) > 1:
            keys = await self._keys(reporting[next(self._turn) % len(reporting)], path, data)
            if keys is not None and keys.block_size > 0 and len(keys.keys) % KEY_BYTES == 0:
                blocks = Chain(split_keys(keys.keys), keys.block_size)
                tokens = max(keys.prompt_tokens, blocks.block * len(blocks.keys), 1)
        if len(reporting) == len(replicas):
            return Query((blocks,), tokens, session)
        text = b"".join(map(bytes, _text(body)))
        pieces = Chain(pieces_of(text, body.cache_salt or ""), TEXT_TOKENS)
        tokens = max(tokens, TEXT_TOKENS * len(pieces.keys))
        return Query((blocks, pieces), tokens, session)

    async def _keys(self, replica: Replica, path: str, data: bytes) -> _Keys | None:
        self.asked += 1
        key = self._fleet.options.admin_key
        assert key is not None  # who has none hears of no cache
        headers: Headers = (
            (b"authorization", b"Bearer " + key.encode()),
            (b"content-type", b"application/json"),
        )
        try:
            where = f"/admin/cache/keys?path={quote(path, safe='')}"
            exchange = await replica.pool.exchange("POST", where, headers, data, _PATIENCE)
            try:
                answer = await exchange.read_all(64 << 20)
                if exchange.status == 200:
                    return msgspec.json.decode(answer, type=_Keys)
            finally:
                exchange.close()
        except (UpstreamError, msgspec.DecodeError):
            pass
        # Of a request that cannot be served the replica says why when it gets it.
        self.unanswered += 1
        return None


def pieces_of(text: bytes, salt: str = "") -> list[bytes]:
    """The keys of a text's full pieces."""
    running = blake2b(salt.encode(), digest_size=KEY_BYTES, person=b"penstock-text")
    keys = []
    last = min(len(text) // PIECE_BYTES, _MOST_PIECES) * PIECE_BYTES
    for at in range(0, last, PIECE_BYTES):
        running.update(text[at : at + PIECE_BYTES])
        keys.append(running.copy().digest())
    return keys


def _text(body: Body) -> tuple[msgspec.Raw, ...]:
    """What a prompt is made of, in the order in which templates write it."""
    return body.tools, body.instructions, body.prompt, body.messages, body.input


def read_body(data: bytes) -> Body | None:
    """The body of a request; None for one that only a replica can say what is wrong with."""
    try:
        return msgspec.json.decode(data, type=Body)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None


def with_seed(data: bytes, seed: int) -> bytes:
    """The same request, a JSON object without a seed, with one; all its bytes stay as they are."""
    fields: dict[str, Any] = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    if "seed" in fields:  # it is null
        return msgspec.json.encode({**fields, "seed": seed})
    at = data.index(b"{") + 1
    comma = b"," if fields else b""
    return b'%b"seed":%d%b%b' % (data[:at], seed, comma, data[at:])
