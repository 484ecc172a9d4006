"""One request: a replica is chosen and its answer passed on; another one where that fails."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from typing import Final

from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from penstock.router.asked import Asked
from penstock.router.delivery import WHOLE_BYTES, Delivery, Head, RefusedError
from penstock.router.exchange import EndedError, UpstreamError
from penstock.router.fleet import Fleet
from penstock.router.headers import passed_headers, sent_headers
from penstock.router.prompts import Prompts
from penstock.router.replica import Replica
from penstock.router.resume.dialects import streaming_at
from penstock.router.resume.parts import DivergedError
from penstock.router.resume.seeds import SeedPlace
from penstock.router.tries import MOST_BROKEN, Tries
from penstock.routing.query import Query
from penstock.routing.router import Sent
from penstock.server.errors import RETRY_AFTER_S, ApiError, unavailable
from penstock.server.open_requests import OpenRequest
from penstock.server.sse import LAST_WORDS_S, ClientGone, unless_ended

_NOT_FOUND: Final = 404
_ELSEWHERE: Final = (_NOT_FOUND, 429, 502, 503, 508)
"""Statuses by which a replica says that another one should be asked. What one has not, another may
have: a model or a path that is not its own, or what a client has left at one of them."""
_SEED_BITS: Final = 63
_log = logging.getLogger("penstock.router")


class Relay:
    """An ASGI answer: that of a replica.

    Of a request that one replica does not answer another one is asked, and of a stream that breaks
    off another one of ours, which makes it again; where there is none now, one is waited for.
    """

    def __init__(self, request: Request, asked: Asked, fleet: Fleet, prompts: Prompts) -> None:
        self._request = request
        self._asked = asked
        self._fleet = fleet
        self._prompts = prompts
        self._opened = OpenRequest.of(request.scope)
        self._tries = Tries(fleet, asked.model)
        streaming = streaming_at(asked.path)
        asks = streaming is not None and asked.body is not None and streaming.asked_by(asked.body)
        self._streaming = streaming if asks else None
        """What it asks for that another replica may go on with."""
        self._seed: int | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        delivery = Delivery(self._asked.path, scope, send)
        try:
            await unless_ended(self._request, receive, self._serve(delivery))
        except (ClientGone, OSError):
            self._opened.notes["left"] = True
        except (ApiError, DivergedError) as error:
            failure = error if isinstance(error, ApiError) else _broken_off(str(error))
            self._opened.notes["ended"] = failure.body.error.code
            with contextlib.suppress(TimeoutError, OSError):
                async with asyncio.timeout(LAST_WORDS_S):
                    await delivery.fail(failure, receive)

    async def _serve(self, delivery: Delivery) -> None:
        fleet, tries = self._fleet, self._tries
        query: Query | None = None
        while True:
            among = tries.able() or await tries.wait()
            if not among:
                if tries.refusal is not None and not delivery.started:
                    await delivery.pass_refusal(tries.refusal)
                    return
                raise self._nobody(delivery)
            if query is None:
                query = await self._query(among)
                if not (among := tries.able()):  # time has passed
                    continue
            replica, choice = fleet.choose(query, among)
            self._note(replica, choice.cached, delivery)
            sent, had = fleet.begin(replica, query, choice), delivery.sent
            try:
                await self._try(replica, sent, delivery)
                return
            except RefusedError as refusal:
                tries.refused(replica, refusal)
            except UpstreamError as error:
                self._failed(replica, error, delivery, delivery.sent > had)
                if delivery.started:
                    tries.goes_on_from(replica)
            finally:
                fleet.router.end(sent)
            if tries.is_cause:
                raise self._taken_for_the_cause(delivery)

    def _note(self, replica: Replica, cached: int, delivery: Delivery) -> None:
        """Count a try, for the log and the metrics."""
        notes, last = self._opened.notes, self._tries.last
        self._tries.begin(replica)
        notes["replica"] = replica.url
        notes["cached"] = cached
        if last is None:
            return
        notes["tries"] = self._tries.count
        if delivery.started:
            last.counts.resumed += 1
            notes["resumed"] = True
        else:
            last.counts.retried += 1

    def _failed(
        self, replica: Replica, error: UpstreamError, delivery: Delivery, got: bool
    ) -> None:
        """Note that a replica failed, from which the client ``got`` something or not; raises
        ApiError where no other can go on."""
        replica.counts.failures += 1
        self._tries.failed(replica, error, got)
        _log.warning("%s: %s (%s)", replica.url, error, self._opened.id)
        if error.stage == "connect":
            self._fleet.now(replica, "down", str(error))
        if isinstance(error, EndedError):
            # An engine that is back before the next probe would never have been away: the request
            # would not be sent to it again.
            self._fleet.now(replica, "draining", str(error))
        if not delivery.resumable:
            raise _broken_off(f"the replica that answered is gone ({error})")
        delivery.resume()

    async def _query(self, among: int) -> Query:
        asked = self._asked
        if asked.body is None:
            return Query((), max(len(asked.data) // 4, 1), asked.session)
        return await self._prompts.query(asked.path, asked.data, asked.body, among, asked.session)

    async def _try(self, replica: Replica, sent: Sent, delivery: Delivery) -> None:
        """Send the request to a replica, and pass its answer on. Raises UpstreamError, RefusedError
        and DivergedError."""
        asked = self._asked
        client = self._request.client
        streaming = self._streaming if replica.is_ours else None
        exchange = await replica.pool.exchange(
            asked.method,
            asked.target,
            sent_headers(
                asked.headers, self._opened.id, client.host if client else None, self._fleet.name
            ),
            asked.data if streaming is None else self._data(streaming.seed),
            self._fleet.options.timeouts,
        )
        try:
            head = Head(exchange.status, passed_headers(exchange.headers, replica.target))
            if exchange.status == _NOT_FOUND:
                replica.is_doubted = True
            if exchange.status in _ELSEWHERE:
                raise RefusedError(head, await exchange.read_all(WHOLE_BYTES))
            if delivery.started and not delivery.takes(exchange):
                said = (await exchange.read_all(WHOLE_BYTES))[:200]
                raise UpstreamError("head", f"status {exchange.status}: {said!r}")
            router = self._fleet.router
            stream = None if streaming is None else streaming.stream
            await delivery.pass_on(exchange, head, stream, lambda: router.prefilled(sent))
        finally:
            exchange.close()

    def _data(self, place: SeedPlace) -> bytes:
        """The body of a stream that may have to be made again: with a seed of ours, if it has
        none."""
        asked = self._asked
        if asked.body is None or place.is_given(asked.body):
            return asked.data
        if self._seed is None:
            self._seed = secrets.randbits(_SEED_BITS)
        return place.put(asked.data, self._seed)

    def _nobody(self, delivery: Delivery) -> ApiError:
        """The error for a request that no replica is left for."""
        fleet, tries, troubles = self._fleet, self._tries, self._tries.troubles
        if delivery.started:
            return _broken_off(
                f"the replica that answered is gone, and no other is left ({troubles})"
            )
        if not tries.count and fleet.ready(None):
            models = ", ".join(map(repr, fleet.models))
            return ApiError(
                404,
                f"the model {tries.model!r} does not exist here; the replicas serve {models}",
                type="not_found_error",
                param="model",
                code="model_not_found",
            )
        why = troubles or fleet.troubles
        return unavailable(f"no replica can serve this now: {why}", "no_replica", RETRY_AFTER_S)

    def _taken_for_the_cause(self, delivery: Delivery) -> ApiError:
        why = f"{MOST_BROKEN} replicas in a row broke off: {self._tries.troubles}"
        if delivery.started:
            return _broken_off(why)
        return ApiError(
            502,
            f"{why}; it may be this request that ends them, so no other is asked",
            type="server_error",
            code="replicas_broke_off",
            retry=False,
        )


def _broken_off(why: str) -> ApiError:
    return ApiError(
        502,
        f"the answer broke off: {why}; send the request again",
        type="server_error",
        code="stream_broken",
    )
