"""The handlers of responses that are kept, and their endpoints."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from penstock.server.errors import ApiError
from penstock.server.open_requests import OpenRequest
from penstock.server.openai.paths import RESPONSES
from penstock.server.openai.responses import protocol
from penstock.server.openai.responses.protocol import ResponseDeleted, ResponseItems
from penstock.server.openai.responses.stored import StoredResponse, StoredResponses, as_shown
from penstock.server.openapi import Endpoint

_MOST_ITEMS = 100
_ONE = RESPONSES + "/{response_id}"


class StoredHandlers:
    """The handlers, which need no model: responses are found by their ids."""

    def __init__(self, stored: StoredResponses) -> None:
        self._stored = stored

    async def stored(self, request: Request) -> Response:
        if request.query_params.get("stream", "false").lower() not in ("false", "0"):
            raise ApiError(
                400, "stream: a response that is kept has ended; ask without", param="stream"
            )
        return Response(self._found(request).answer, media_type="application/json")

    async def delete(self, request: Request) -> Response:
        name = request.path_params["response_id"]
        self._stored.delete(name, _owner(request))
        return _json(ResponseDeleted(id=name))

    async def items(self, request: Request) -> Response:
        found, asked = self._found(request), request.query_params
        items = [as_shown(item) for item in found.input]
        order, after = asked.get("order", "desc"), asked.get("after")
        text = asked.get("limit", "20")
        if order not in ("asc", "desc"):
            raise ApiError(400, "order must be asc or desc", param="order")
        if not text.isascii() or not text.isdecimal() or not 1 <= int(text[:9]) <= _MOST_ITEMS:
            raise ApiError(400, f"limit must be from 1 to {_MOST_ITEMS}", param="limit")
        if order == "desc":
            items.reverse()
        if after is not None:
            at = next((i for i, item in enumerate(items) if item["id"] == after), None)
            if at is None:
                raise ApiError(400, f"after: there is no item {after[:80]!r}", param="after")
            items = items[at + 1 :]
        page = items[: int(text)]
        return _json(
            ResponseItems(
                data=page,
                first_id=page[0]["id"] if page else None,
                last_id=page[-1]["id"] if page else None,
                has_more=len(items) > len(page),
            )
        )

    def _found(self, request: Request) -> StoredResponse:
        return self._stored.get(request.path_params["response_id"], _owner(request))

    def endpoints(self) -> list[Endpoint]:
        return [
            Endpoint("GET", _ONE, self.stored, "A response that is kept.", protocol.Response),
            Endpoint("DELETE", _ONE, self.delete, "Forget a response.", ResponseDeleted),
            Endpoint(
                "GET",
                _ONE + "/input_items",
                self.items,
                "What the model was given for a response that is kept.",
                ResponseItems,
                query={
                    "limit": {"type": "integer", "minimum": 1, "maximum": _MOST_ITEMS},
                    "order": {"enum": ["asc", "desc"]},
                    "after": {"type": "string"},
                },
            ),
        ]


def _owner(request: Request) -> str:
    return OpenRequest.of(request.scope).caller.name


def _json(value: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
