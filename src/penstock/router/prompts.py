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

import asyncio
from hashlib import blake2b
from typing import Annotated, Final
from urllib.parse import quote

import msgspec
from msgspec import Meta

from penstock.router.asked import Body, text_of
from penstock.router.exchange import Headers, Timeouts
from penstock.router.fleet import TEXT_TOKENS, Fleet
from penstock.router.paths import keyed_as
from penstock.router.reading import read
from penstock.router.replica import LATE_S, Replica
from penstock.routing.known import Turns
from penstock.routing.query import KEY_BYTES, Chain, Keys, Query

PIECE_BYTES: Final = 256
"""Bytes of text of a piece; four of them count as a token."""
_MOST_PIECES: Final = 4096
"""Pieces that are looked at: those of a MiB."""
_BYTES_PER_TOKEN: Final = PIECE_BYTES // TEXT_TOKENS
_MOST_ASKED: Final = 2
"""Replicas that are asked for the keys of one prompt."""
_MAX_KEYS: Final = 64 << 20
_PATIENCE: Final = Timeouts(connect=1.0, head=5.0, idle=5.0)
_NO_KEYS: Final = Chain(b"", 1)


class _Keys(msgspec.Struct):
    block_size: Annotated[int, Meta(le=1 << 16)]
    prompt_tokens: Annotated[int, Meta(le=1 << 40)]
    keys: bytes


class Prompts:
    """Makes queries of requests."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._turns = Turns()
        self.asked = 0
        """Prompts whose keys a replica was asked for."""
        self.unanswered = 0
        """Those of them for which none came."""

    async def query(
        self, path: str, data: bytes, body: Body, among: int, session: str | None
    ) -> Query:
        """The query for a request that one of a set of replicas will get."""
        sets = self._fleet.sets
        reporting = among & sets.synchronized
        parts = body.prompt_parts
        size = sum(len(memoryview(part)) for part in parts)
        blocks, tokens = _NO_KEYS, max(size // _BYTES_PER_TOKEN, 1)
        keyed = keyed_as(path)
        if reporting and keyed is not None and among.bit_count() > 1:
            keys = await self._keys(self._in_turn(reporting), keyed, data)
            if keys is not None and keys.block_size > 0 and len(keys.keys) % KEY_BYTES == 0:
                blocks = Chain(keys.keys, keys.block_size)
                tokens = max(keys.prompt_tokens, blocks.tokens, 1)
        if reporting == among:
            return Query((blocks,), tokens, session)
        # Models, and adapters of one, have keys and values of their own.
        salt = f"{text_of(body.model) or ''}\0{text_of(body.cache_salt) or ''}"
        pieces = Chain(pieces_of(b"".join(map(bytes, parts)), salt), TEXT_TOKENS)
        tokens = max(tokens, pieces.tokens)
        return Query((blocks, pieces), tokens, session)

    def _in_turn(self, reporting: int) -> list[Replica]:
        """Those of a set that are asked for keys: another one first each time, and late ones
        last."""
        chosen: list[Replica] = []
        while reporting and len(chosen) < _MOST_ASKED:
            number = self._turns.first(self._fleet.sets.on_time(reporting))
            reporting ^= 1 << number
            chosen += self._fleet.of(1 << number)
        return chosen

    async def _keys(self, replicas: list[Replica], path: str, data: bytes) -> _Keys | None:
        """The first answer of these, each of which is asked when the one before it failed or let
        wait for ``LATE_S``."""
        self.asked += 1
        asked: set[asyncio.Future[_Keys | None]] = set()
        try:
            for number, replica in enumerate(replicas, 1):
                asked.add(asyncio.ensure_future(self._ask(replica, path, data)))
                patience = LATE_S if number < len(replicas) else None
                while asked:
                    waiting = asyncio.wait(
                        asked, timeout=patience, return_when=asyncio.FIRST_COMPLETED
                    )
                    done, asked = await waiting
                    for each in done:
                        if each.exception() is None:
                            return self._counted(each.result())
                    if not done:
                        break
        finally:
            for each in asked:
                each.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
        return self._counted(None)

    def _counted(self, keys: _Keys | None) -> _Keys | None:
        self.unanswered += keys is None
        return keys

    async def _ask(self, replica: Replica, path: str, data: bytes) -> _Keys | None:
        """None for a request that cannot be served: the replica says why when it gets it. Raises
        UpstreamError."""
        key = replica.member.admin_key
        assert key is not None  # who has none hears of no cache
        headers: Headers = (
            (b"authorization", b"Bearer " + key.encode()),
            (b"content-type", b"application/json"),
        )
        where = f"/admin/cache/keys?path={quote(path, safe='')}"
        with replica.questioned():
            status, answer = await replica.pool.fetch(
                "POST", where, headers, data, _PATIENCE, _MAX_KEYS
            )
        return read(answer, _Keys) if status == 200 else None


def pieces_of(text: bytes, salt: str = "") -> Keys:
    """The keys of a text's full pieces."""
    running = blake2b(salt.encode(), digest_size=KEY_BYTES, person=b"penstock-text")
    keys = []
    last = min(len(text) // PIECE_BYTES, _MOST_PIECES) * PIECE_BYTES
    for at in range(0, last, PIECE_BYTES):
        running.update(text[at : at + PIECE_BYTES])
        keys.append(running.copy().digest())
    return b"".join(keys)
