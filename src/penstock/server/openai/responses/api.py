"""``POST /v1/responses``: chats in OpenAI's newer dialect."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator, Iterable
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
    Response,
    ResponseEvent,
    ResponseRequest,
    ResponseUsage,
    State,
    TextOptions,
)
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

    def __init__(self, request: ResponseRequest, chat: PreparedChat) -> None:
        self._request = request
        self._chat = chat
        self._id = f"resp_{uuid.uuid4().hex}"
        self._created = int(time.time())
        self._num_events = 0
        self._items = Items(chat.reading.call_id)

    @classmethod
    async def prepare(cls, request: ResponseRequest, serving: Serving, meter: Meter) -> ResponseJob:
        """Validate a request. Raises ApiError or RequestError for what is refused before the engine
        runs."""
        return cls(request, await prepare_chat(as_chat(request), serving, meter, RESPONSES))

    async def answer(self) -> bytes:
        """The whole answer as JSON."""
        (output,) = await last([self._chat.generation(self._id)])
        (choice,) = output.outputs
        delta = self._chat.reading.read(choice.text)
        for _ in self._items.take(delta, self._logprobs(choice.logprobs)):
            pass
        for _ in self._items.finish(_STATES[choice.finish_reason]):
            pass
        return msgspec.json.encode(self._response(output))

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
