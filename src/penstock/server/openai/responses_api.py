"""``POST /v1/responses``: the same chats in OpenAI's newer dialect."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import Any

import msgspec

from penstock.engine.completion import PositionLogprobs
from penstock.engine.output import CompletionOutput, RequestOutput
from penstock.sampling.params import SamplingParams
from penstock.server.engine import Engine
from penstock.server.fanout import Generation, last, merged
from penstock.server.meter import Meter
from penstock.server.openai import responses
from penstock.server.openai.errors import ApiError
from penstock.server.openai.messages import chat_prompt
from penstock.server.openai.protocol import ChatRequest, Message
from penstock.server.openai.responses import ChatLogprob
from penstock.server.openai.responses_protocol import (
    IncompleteDetails,
    InputDetails,
    InputMessage,
    OutputMessage,
    OutputText,
    Response,
    ResponseEvent,
    ResponseRequest,
    ResponseUsage,
    State,
)
from penstock.server.openai.sampling import chat_params

_STATES: dict[str | None, State] = {
    None: "in_progress",
    "stop": "completed",
    "length": "incomplete",
    "abort": "cancelled",
}


class ResponseJob:
    """One validated request: its input is one tokenized prompt, its options are checked."""

    def __init__(
        self,
        request: ResponseRequest,
        prompt: list[int],
        params: SamplingParams,
        engine: Engine,
        meter: Meter,
    ) -> None:
        self._request = request
        self._prompt = prompt
        self._params = params
        self._engine = engine
        self._meter = meter
        self._id = f"resp_{uuid.uuid4().hex}"
        self._item_id = f"msg_{uuid.uuid4().hex}"
        self._created = int(time.time())
        self._num_events = 0

    @classmethod
    async def prepare(cls, request: ResponseRequest, engine: Engine, meter: Meter) -> ResponseJob:
        """Raises ApiError or RequestError for what can be refused before the engine is asked."""
        chat = _as_chat(request)
        prompt = await chat_prompt(chat, engine)
        longest = engine.model.max_model_len
        params = chat_params(
            chat, engine.model.vocab_size, longest - len(prompt), longest, "max_output_tokens"
        )
        return cls(request, prompt, params, engine, meter)

    async def answer(self) -> bytes:
        """The whole answer as JSON."""
        (output,) = await last([self._generation()])
        return msgspec.json.encode(self._response(output))

    async def events(self) -> AsyncGenerator[bytes, None]:
        """The answer as server-sent events."""
        sent: CompletionOutput | None = None
        output: RequestOutput | None = None
        async with aclosing(merged([self._generation()])) as outputs:
            async for _, output in outputs:
                if not self._num_events:
                    for opening in self._opening():
                        yield opening
                (choice,) = output.outputs
                if choice.has_text_since(sent):
                    delta = choice.since(sent)
                    sent = choice
                    logprobs = self._logprobs(delta.logprobs)
                    yield self._part_event("output_text.delta", delta=delta.text, logprobs=logprobs)
        assert output is not None
        for closing in self._closing(output):
            yield closing

    def error(self, failure: ApiError) -> bytes:
        """The data of the event that tells why a stream ends early."""
        body = failure.body.error
        return msgspec.json.encode(
            ResponseEvent(
                type="error",
                sequence_number=self._num_events,
                code=body.code or body.type,
                message=body.message,
                param=body.param,
            )
        )

    def _opening(self) -> Iterator[bytes]:
        yield self._event("created", response=self._response(None))
        yield self._event("in_progress", response=self._response(None))
        item = OutputMessage(id=self._item_id, status="in_progress", content=[])
        yield self._event("output_item.added", output_index=0, item=item)
        yield self._part_event("content_part.added", part=OutputText(text=""))

    def _closing(self, output: RequestOutput) -> Iterator[bytes]:
        response = self._response(output)
        (item,) = response.output
        (part,) = item.content
        yield self._part_event("output_text.done", text=part.text, logprobs=part.logprobs)
        yield self._part_event("content_part.done", part=part)
        yield self._event("output_item.done", output_index=0, item=item)
        yield self._event(response.status, response=response)

    def _part_event(self, name: str, **fields: Any) -> bytes:
        return self._event(name, item_id=self._item_id, output_index=0, content_index=0, **fields)

    def _event(self, name: str, **fields: Any) -> bytes:
        kind = f"response.{name}"
        data = ResponseEvent(type=kind, sequence_number=self._num_events, **fields)
        self._num_events += 1
        return b"event: " + kind.encode() + b"\ndata: " + msgspec.json.encode(data) + b"\n\n"

    def _generation(self) -> Generation:
        return self._meter.measured(
            self._engine.generate(
                self._prompt,
                self._params,
                request_id=self._id,
                priority=self._request.priority or 0,
                cache_salt=self._request.cache_salt or "",
            )
        )

    def _response(self, output: RequestOutput | None) -> Response:
        """The answer so far; None: none yet."""
        request, items = self._request, []
        state: State = "in_progress"
        usage: ResponseUsage | None = None
        if output is not None:
            (choice,) = output.outputs
            state = _STATES[choice.finish_reason]
            part = OutputText(text=choice.text, logprobs=self._logprobs(choice.logprobs))
            items = [OutputMessage(id=self._item_id, status=state, content=[part])]
            counted = responses.usage([output])
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
            output=items,
            temperature=self._params.temperature,
            top_logprobs=request.top_logprobs or 0,
            top_p=self._params.top_p,
            usage=usage,
            user=request.user,
        )

    def _logprobs(self, positions: list[PositionLogprobs] | None) -> list[ChatLogprob]:
        if not self._request.include:
            return []
        top = self._request.top_logprobs or 0
        return responses.chat_logprobs(self._engine.tokenizer, positions or [], top).content


def _as_chat(request: ResponseRequest) -> ChatRequest:
    """The same as a chat. Raises ApiError naming the part of the input at fault."""
    if request.top_logprobs is not None and not request.include:
        raise ApiError(
            400,
            'top_logprobs is only allowed with include=["message.output_text.logprobs"]',
            param="top_logprobs",
        )
    messages = []
    if request.instructions is not None:
        messages.append(Message(role="system", content=request.instructions))
    if isinstance(request.input, str):
        messages.append(Message(role="user", content=request.input))
    elif not request.input:
        raise ApiError(400, "input must hold at least one message", param="input")
    else:
        messages += [_message(item, f"input[{i}]") for i, item in enumerate(request.input)]
    return ChatRequest(
        model=request.model,
        messages=messages,
        max_completion_tokens=request.max_output_tokens,
        logprobs=True if request.include else None,
        top_logprobs=request.top_logprobs,
        temperature=request.temperature,
        top_p=request.top_p,
        top_k=request.top_k,
        min_p=request.min_p,
        repetition_penalty=request.repetition_penalty,
        seed=request.seed,
        stop=request.stop,
        chat_template_kwargs=request.chat_template_kwargs,
    )


def _message(item: InputMessage, where: str) -> Message:
    if isinstance(item.content, str):
        return Message(role=item.role, content=item.content)
    texts = []
    for i, part in enumerate(item.content):
        at = f"{where}.content[{i}]"
        text, other = part.text, part.refusal
        if part.type == "refusal":
            text, other = other, text
        if text is None or other is not None:
            field = "refusal" if part.type == "refusal" else "text"
            raise ApiError(400, f"{at} is of type {part.type} and needs {field} alone", param=at)
        if part.type != "input_text" and item.role != "assistant":
            raise ApiError(400, f"{at}: {part.type} belongs to assistant messages only", param=at)
        if part.annotations not in (None, []):
            raise ApiError(
                400,
                f"{at}.annotations is not supported by this server; send the part without it",
                param=f"{at}.annotations",
                code="unsupported_parameter",
            )
        texts.append(text)
    return Message(role=item.role, content="".join(texts))
