"""``POST /v1/responses``: chats in OpenAI's newer dialect."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from typing import Any

import msgspec

from penstock.frontend.outputs import PositionLogprobs, RequestOutput
from penstock.server.errors import ApiError
from penstock.server.fanout import last, merged
from penstock.server.meter import Meter
from penstock.server.openai import answer_structs
from penstock.server.openai.answer_structs import ChatLogprob
from penstock.server.openai.choice_stream import ChoiceStream
from penstock.server.openai.names import RESPONSES
from penstock.server.openai.prepare import PreparedChat, prepare_chat
from penstock.server.openai.responses.input import as_chat
from penstock.server.openai.responses.items import Event, Items
from penstock.server.openai.responses.protocol import (
    IncompleteDetails,
    InputDetails,
    InputItem,
    Response,
    ResponseEvent,
    ResponseRequest,
    ResponseUsage,
    State,
    TextOptions,
)
from penstock.server.openai.responses.stored import StoredResponses, own_items
from penstock.server.serving import Serving
from penstock.server.sse import event

_STATES: dict[str | None, State] = {
    None: "in_progress",
    "stop": "completed",
    "length": "incomplete",
    "abort": "cancelled",
}


class ResponseJob:
    """One validated request to the Responses API."""

    def __init__(
        self,
        request: ResponseRequest,
        chat: PreparedChat,
        given: Sequence[InputItem] = (),
        stored: StoredResponses | None = None,
        owner: str = "",
    ) -> None:
        """``given`` are the items that the model is given. The response is kept in ``stored``,
        if anywhere, as that of the caller ``owner``."""
        self._request = request
        self._given, self._stored, self._owner = given, stored, owner
        self._chat = chat
        self._id = f"resp_{uuid.uuid4().hex}"
        self._created = int(time.time())
        self._num_events = 0
        self._items = Items(chat.reading.call_id)

    @classmethod
    async def prepare(
        cls, stored: StoredResponses, request: ResponseRequest, serving: Serving, meter: Meter
    ) -> ResponseJob:
        """Validate a request. Raises ApiError or RequestError for what is refused before the engine
        runs."""
        chat, owner = as_chat(request), serving.caller.name  # errors are by the request's own items
        given = own_items(request)
        if request.previous_response_id is not None:
            name = request.previous_response_id
            before = stored.get(name, owner, "previous_response_id")
            given = [*before.items, *given]
            chat = as_chat(msgspec.structs.replace(request, input=given))
        prepared = await prepare_chat(chat, serving, meter, RESPONSES)
        kept = stored if request.store is not False else None
        return cls(request, prepared, given, kept, owner)

    async def answer(self) -> bytes:
        """The whole answer as JSON."""
        (output,) = await last([self._chat.generation(self._id)])
        (choice,) = output.outputs
        delta = self._chat.reading.read(choice.text)
        for _ in self._items.take(delta, self._logprobs(choice.logprobs)):
            pass
        for _ in self._items.finish(_STATES[choice.finish_reason]):
            pass
        response = self._response(output)
        self._keep(response)
        return msgspec.json.encode(response)

    async def events(self) -> AsyncGenerator[bytes, None]:
        """The answer as server-sent events."""
        stream = ChoiceStream(self._chat.reading)
        output: RequestOutput | None = None
        async with aclosing(merged([self._chat.generation(self._id)])) as outputs:
            async for _, output in outputs:
                if not self._num_events:
                    yield self._event("created", response=self._response(None))
                    yield self._event("in_progress", response=self._response(None))
                (choice,) = output.outputs
                delta = stream.take(choice)
                if delta:
                    logprobs = stream.take_logprobs() if delta.content else None
                    for data in self._encoded(self._items.take(delta, self._logprobs(logprobs))):
                        yield data
        assert output is not None
        (choice,) = output.outputs
        for data in self._encoded(self._items.finish(_STATES[choice.finish_reason])):
            yield data
        response = self._response(output)
        self._keep(response)
        yield self._event(response.status, response=response)

    def error(self, failure: ApiError) -> bytes:
        """The event that says why a stream ends early."""
        body = failure.body.error
        data = msgspec.json.encode(
            ResponseEvent(
                type="error",
                sequence_number=self._num_events,
                code=body.code or body.type,
                message=body.message,
                param=body.param,
            )
        )
        return event(data)

    def _keep(self, response: Response) -> None:
        if self._stored is not None:
            self._stored.keep(response, self._given, self._owner)

    def _encoded(self, events: Iterable[Event]) -> Iterable[bytes]:
        for name, fields in events:
            yield self._event(name, **fields)

    def _event(self, name: str, /, **fields: Any) -> bytes:
        kind = f"response.{name}"
        data = ResponseEvent(type=kind, sequence_number=self._num_events, **fields)
        self._num_events += 1
        return b"event: " + kind.encode() + b"\ndata: " + msgspec.json.encode(data) + b"\n\n"

    def _response(self, output: RequestOutput | None) -> Response:
        """The answer so far; None: none yet."""
        request, params = self._request, self._chat.params
        state: State = "in_progress"
        usage: ResponseUsage | None = None
        if output is not None:
            state = _STATES[output.outputs[0].finish_reason]
            counted = answer_structs.usage([output])
            usage = ResponseUsage(
                input_tokens=counted.prompt_tokens,
                input_tokens_details=InputDetails(counted.prompt_tokens_details.cached_tokens),
                output_tokens=counted.completion_tokens,
                total_tokens=counted.total_tokens,
            )
        return Response(
            id=self._id,
            created_at=self._created,
            status=state,
            incomplete_details=IncompleteDetails() if state == "incomplete" else None,
            instructions=request.instructions,
            max_output_tokens=request.max_output_tokens,
            metadata=request.metadata or {},
            model=request.model,
            output=self._items.all(state),
            parallel_tool_calls=request.parallel_tool_calls is not False,
            previous_response_id=request.previous_response_id,
            store=self._stored is not None,
            temperature=params.temperature,
            text=request.text or TextOptions(),
            tool_choice=request.tool_choice or "auto",
            tools=request.tools or [],
            top_logprobs=request.top_logprobs or 0,
            top_p=params.top_p,
            usage=usage,
            user=request.user,
        )

    def _logprobs(self, positions: list[PositionLogprobs] | None) -> list[ChatLogprob]:
        if not self._request.include:
            return []
        top = self._request.top_logprobs or 0
        return answer_structs.chat_logprobs(
            self._chat.engine.tokenizer, positions or [], top
        ).content
