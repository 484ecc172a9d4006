"""What is found out about a server before it is measured."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec

from penstock.bench.load.connection import Exchange, Failure, NotConnected, Pool
from penstock.bench.load.events import EventReader
from penstock.bench.load.outcome import error_words, refusal
from penstock.bench.load.target import Target
from penstock.bench.load.turn import Piece
from penstock.bench.load.wordbook import Wordbook, all_words, by_pieces, measured
from penstock.bench.load.words import WORDS
from penstock.errors import ConfigError, PenstockError

_CONNECTS: Final = 5
_PROBE_S: Final = 300.0
_FIRST_WORDS: Final = 16
"""Words of the first small request."""


class _Entry(msgspec.Struct):
    id: str
    max_model_len: int | None = None
    owned_by: str | None = None


class _Models(msgspec.Struct):
    data: list[_Entry]


class _Tokens(msgspec.Struct):
    token_strs: list[str] | None = None


@dataclass(frozen=True)
class Server:
    """A server that is ready to be measured."""

    target: Target
    wordbook: Wordbook
    round_trip_s: float
    """The median time until a new connection stood."""
    models: tuple[str, ...]
    max_model_len: int | None
    owned_by: str | None
    """Who serves the model, by ``/v1/models``; most servers name themselves."""
    tells_usage: bool


class Prober:
    """Asks a server what is needed to measure it. Raises PenstockError where it does not answer as
    servers of OpenAI's API do."""

    def __init__(self, target: Target, pool: Pool) -> None:
        self._target = target
        self._pool = pool

    async def server(self, tokens_of: Callable[[str], int] | None) -> Server:
        """Everything about the server. ``tokens_of`` counts by a tokenizer of the user's."""
        trips = [await self._connect_time() for _ in range(_CONNECTS)]
        entries = await self._models()
        entry = self._chosen(entries)
        self._target = replace(self._target, model=entry.id)
        if tokens_of is not None:
            book = measured(tokens_of, "tokenizer")
        else:
            book = await self._by_server() or Wordbook()
        usage = await self._first(book)
        if book.known_by == "nothing" and usage is not None:
            book = await self._by_usage(book, usage)
        if book.exact and usage is not None:
            book = replace(book, around=max(0, usage - _FIRST_WORDS))
        return Server(
            target=self._target,
            wordbook=book,
            round_trip_s=statistics.median(trips),
            models=tuple(each.id for each in entries),
            max_model_len=entry.max_model_len,
            owned_by=entry.owned_by,
            tells_usage=usage is not None,
        )

    async def _connect_time(self) -> float:
        try:
            return await self._pool.connect_time()
        except NotConnected as error:
            raise PenstockError(
                f"{self._target.url} cannot be reached: {error}; check the URL, and that the "
                "server runs"
            ) from None

    async def _models(self) -> list[_Entry]:
        path = f"{self._target.base}/models"
        exchange = await self._whole("GET", path)
        if exchange.status != 200:
            if self._target.model:
                return []
            raise PenstockError(self._refused(path, exchange))
        try:
            return msgspec.json.decode(exchange.body, type=_Models).data
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise PenstockError(
                f"{self._target.url}{path} does not list models as OpenAI's API does: {error}; "
                "check the URL"
            ) from None

    def _chosen(self, entries: list[_Entry]) -> _Entry:
        name = self._target.model
        if name:
            return next((entry for entry in entries if entry.id == name), _Entry(name))
        if len(entries) != 1:
            listed = ", ".join(entry.id for entry in entries[:20])
            has = f"has {listed}" if listed else "names no model"
            raise ConfigError(f"{self._target.url} {has}; name one with --model")
        return entries[0]

    async def _by_server(self) -> Wordbook | None:
        """The words by ``POST /tokenize``, which Penstock's servers and vLLM's have."""
        body = {
            "model": self._target.model,
            "prompt": all_words(),
            "add_special_tokens": False,
            "return_token_strs": True,
        }
        try:
            exchange = await self._whole("POST", "/tokenize", body)
            found = msgspec.json.decode(exchange.body, type=_Tokens).token_strs
        except (PenstockError, msgspec.DecodeError, UnicodeDecodeError):
            return None
        return by_pieces(found, "server") if exchange.status == 200 and found else None

    async def _first(self, book: Wordbook) -> int | None:
        """Send a first small request, and return the prompt tokens that it had by the usage; None
        where the server tells none. Finds out, too, whether it knows ``ignore_eos``."""
        first = await self._prompt_tokens(book, _FIRST_WORDS)
        if not isinstance(first, Failure):
            return first
        if self._target.exact_lengths and first.kind in ("http 400", "http 422"):
            self._target = replace(self._target, exact_lengths=False)
            second = await self._prompt_tokens(book, _FIRST_WORDS)
            if not isinstance(second, Failure):
                return second
        raise PenstockError(
            f"{self._target.url}{self._target.path} does not answer a first request: {first}"
        )

    async def _by_usage(self, book: Wordbook, of_first: int) -> Wordbook:
        """The words by what more of them add to the prompt's tokens, as the usage counts them."""
        more = len(WORDS) // 2
        tokens = await self._prompt_tokens(book, _FIRST_WORDS + more)
        if isinstance(tokens, Failure) or tokens is None:
            return book
        per_word = (tokens - of_first) / more
        return replace(book, tokens_per_word=per_word, known_by="usage") if per_word > 0 else book

    async def _prompt_tokens(self, book: Wordbook, words: int) -> int | Failure | None:
        text = replace(book, tokens_per_word=1.0).text([Piece((0,), words)])
        reader = EventReader()
        exchange = Exchange(reader)
        message = self._target.ask([("user", text)], 4)
        failure = await self._sent(message, exchange) or refusal(exchange)
        if failure is not None and failure.kind != "no tokens":
            return failure
        return reader.usage.prompt_tokens if reader.usage is not None else None

    async def _whole(
        self, method: str, path: str, body: Mapping[str, Any] | None = None
    ) -> Exchange:
        exchange = Exchange(None)
        encoded = b"" if body is None else msgspec.json.encode(body)
        failure = await self._sent(self._target.message(method, path, encoded), exchange)
        if failure is not None:
            raise PenstockError(
                f"{self._target.url}{path} gives no answer: {failure}; check the URL, and that the "
                "server runs"
            )
        return exchange

    async def _sent(self, message: bytes, exchange: Exchange) -> Failure | None:
        try:
            return await asyncio.wait_for(self._pool.exchange(message, exchange), _PROBE_S)
        except TimeoutError:
            return Failure("timeout", f"no whole answer within {_PROBE_S:g} s")

    def _refused(self, path: str, exchange: Exchange) -> str:
        where = f"{self._target.url}{path}"
        if 300 <= exchange.status < 400:
            to = exchange.location or "elsewhere"
            return f"{where} redirects to {to}; name that URL if it is the one you mean"
        hint = "check the URL"
        if exchange.status in (401, 403):
            hint = "name the environment variable that holds your key by --api-key-env"
        words = error_words(exchange.body)
        return f"{where} refused, with status {exchange.status}: {words}; {hint}"
