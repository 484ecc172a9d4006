"""Hands each request to the model that it is for."""

from __future__ import annotations

import time
from typing import Final

from msgspec import UNSET, UnsetType
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.types import Message, Receive, Scope, Send

from penstock.errors import ConfigError, OverloadedError, UnavailableError
from penstock.repository.catalogue import ModelEntry
from penstock.repository.errors import (
    LoadFailedError,
    NoRoomError,
    RemovedError,
    UnknownModelError,
)
from penstock.repository.loaded import Lease
from penstock.repository.reading import seconds
from penstock.repository.repository import Repository
from penstock.server.body_memory import BODIES_BYTES, BodyMemory
from penstock.server.error_forms import error_form
from penstock.server.errors import RETRY_AFTER_S, ApiError, overloaded, unavailable
from penstock.server.models.late_adapters import LateAdapters
from penstock.server.models.named import (
    BY_BODY,
    BY_QUERY,
    OBSERVING,
    Asked,
    asked_in,
    at_model,
    model_path,
    query_model,
)
from penstock.server.models.served import ServedModel
from penstock.server.open_requests import TIMEOUT, OpenRequest, OpenRequests
from penstock.server.options import ServerOptions
from penstock.server.read_body import read_any_body
from penstock.server.sse import ClientGone, explained, unless_ended

_MOST_NAMES: Final = 8
"""So many models are named where one is not there."""


class ModelsFront:
    """An ASGI application for all requests that one model answers.

    Such a request is read as far as its model's name; it waits until the repository has loaded the
    model, and is then answered by the model's own application, to which the body is handed again.
    It holds its lease to the end of the answer.
    """

    def __init__(
        self,
        repository: Repository[ServedModel],
        requests: OpenRequests,
        options: ServerOptions,
        late: LateAdapters | None = None,
    ) -> None:
        """``late``: adapters that the catalogue does not have."""
        self._repository = repository
        self._adapters = LateAdapters() if late is None else late
        self._requests = requests
        self._options = options
        self._memory = BodyMemory(max(BODIES_BYTES, options.max_body_bytes))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        lease: Lease[ServedModel] | None = None
        try:
            try:
                if scope["path"] in OBSERVING:
                    app = self._observed(query_model(scope)).app
                else:
                    lease, scope, receive = await self._entered(scope, receive)
                    app = lease.model.app
            except (ClientGone, ClientDisconnect):
                return
            except HTTPException:
                raise  # answered as everywhere
            except Exception as error:
                failure = model_failure(error)
                body = error_form(scope["path"]).body(failure)
                await failure.response(body)(scope, receive, send)
                return
            await app(scope, receive, send)
        finally:
            if lease is not None:
                lease.close()

    def entry(self, asked: Asked) -> ModelEntry:
        """The model that a request is for. Raises ApiError."""
        catalogue = self._repository.catalogue
        if asked.name is None:
            entry = catalogue.usual
            if entry is None:
                raise ApiError(
                    400,
                    f"name a model: there are {self._names()}",
                    param="model",
                    code="model_required",
                )
            return entry
        found = (
            catalogue.find(asked.name)
            if asked.version is None
            else catalogue.version(asked.name, asked.version)
        )
        if found is None and asked.path is None:
            late = self._adapters.find(asked.name)
            found = catalogue.adapted(asked.name)
            if found is None and late is not None:
                found = catalogue.find(late.model)
        if found is None:
            asked_for = asked.name if asked.version is None else f"{asked.name}:{asked.version}"
            raise self._not_found(asked_for)
        return found

    def _not_found(self, name: str) -> ApiError:
        return ApiError(
            404,
            f"the model {name!r} does not exist here; there are {self._names()}",
            type="not_found_error",
            param="model",
            code="model_not_found",
        )

    def _observed(self, asked: Asked) -> ServedModel:
        """A model that is loaded: the one that is named, or the one that was used last. Raises
        ApiError."""
        model = self.observed(asked)
        if model is None:
            named = asked.name or self._repository.catalogue.default
            what = "no model is loaded" if named is None else f"the model {named!r} is not loaded"
            raise ApiError(503, what, type="server_error", code="model_not_loaded")
        return model

    def observed(self, asked: Asked) -> ServedModel | None:
        """The same; None where it is not loaded. Raises ApiError for a model that there is not."""
        named = asked.name or self._repository.catalogue.default
        statuses = self._repository.statuses()
        if named is not None:
            name = self.entry(Asked(named)).name
            statuses = [status for status in statuses if status.entry.name == name]
        loaded = [status for status in statuses if status.model is not None]
        return min(loaded, key=lambda status: status.idle_s).model if loaded else None

    async def _entered(
        self, scope: Scope, receive: Receive
    ) -> tuple[Lease[ServedModel], Scope, Receive]:
        """The model, and the request as it is handed over. Raises ApiError, ClientGone and what
        Repository.enter raises."""
        path, request = scope["path"], Request(scope, receive)
        share = self._memory.share()
        try:
            named = model_path(path)
            if named is None and path not in BY_BODY and path not in BY_QUERY:
                raise HTTPException(404)
            options = self._options
            limit, patience = options.max_body_bytes, options.body_timeout_s
            body = await read_any_body(request, limit, patience, share)
            if named is not None:
                asked = named
            elif path in BY_QUERY:
                asked = query_model(scope)
            else:
                asked = await asked_in(path, body)
            entry = self.entry(asked)
            keep = self._seconds(asked)
            lease = await self._lease(request, entry)
            if keep is not UNSET:
                self._keep(lease, entry, keep)
                OpenRequest.of(scope).heeded = ("keep_alive",)
        finally:
            # From here on the body is in the memory of the model's requests.
            share.give_back()
        left: list[bytes] = [body]

        async def again() -> Message:
            if left:
                return {"type": "http.request", "body": left.pop(), "more_body": False}
            return await receive()

        if asked.path is not None:
            scope = at_model(scope, entry.name, asked.path)
        return lease, scope, again

    def _keep(
        self, lease: Lease[ServedModel], entry: ModelEntry, seconds_after: float | None
    ) -> None:
        try:
            self._repository.keep(entry.name, seconds_after)
        except UnknownModelError:  # taken out of the catalogue while the request waited
            lease.close()
            raise

    async def _lease(self, request: Request, entry: ModelEntry) -> Lease[ServedModel]:
        """The use of a model, once it is loaded; a client that leaves waits for it no more. The
        body of the request was read."""
        if self._repository.status(entry.name).state == "ready":
            return await self._repository.enter(entry.name)
        opened = OpenRequest.of(request.scope)
        if self._requests.draining is not None:
            raise unavailable(self._requests.draining, "draining", RETRY_AFTER_S)
        self._requests.begin_work(opened, request.headers.get(TIMEOUT))
        came = time.monotonic()
        try:
            entering = self._repository.enter(entry.name)
            return await unless_ended(request, request.receive, entering)
        except ApiError as error:
            if error.status == 504:
                raise self._late(entry.name, error) from None
            raise
        finally:
            opened.notes["loaded_s"] = round(time.monotonic() - came, 6)

    def _late(self, name: str, error: ApiError) -> ApiError:
        """What is said to a request whose time was over before its model was loaded."""
        status = self._repository.status(name)
        doing = status.phase or status.state
        return ApiError(
            504,
            f"{error}: the model {name!r} is not loaded yet ({doing}); allow it more time",
            type="server_error",
            code="deadline_exceeded",
            retry=False,
        )

    def _seconds(self, asked: Asked) -> float | UnsetType | None:
        """The seconds for which the model is to stay after the request. Raises ApiError."""
        if asked.keep_alive is UNSET:
            return UNSET
        try:
            return seconds(asked.keep_alive, "keep_alive")
        except ConfigError as error:
            raise ApiError(400, str(error), param="keep_alive") from None

    def _names(self) -> str:
        names = [entry.name for entry in self._repository.catalogue]
        more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
        return ", ".join(names[:_MOST_NAMES]) + more


def model_failure(error: Exception) -> ApiError:
    """What a client is told where a repository gives it no model."""
    match error:
        case UnknownModelError() | RemovedError():
            return ApiError(
                404, str(error), type="not_found_error", param="model", code="model_not_found"
            )
        case NoRoomError():
            return ApiError(
                507, str(error), type="server_error", code="model_too_large", retry=False
            )
        case LoadFailedError():
            return unavailable(str(error), "model_load_failed", max(1, round(error.retry_s)))
        case OverloadedError():
            return overloaded(str(error), RETRY_AFTER_S)
        case UnavailableError():
            return unavailable(str(error), "shutting_down", RETRY_AFTER_S)
        case _:
            return explained(error)
