"""``POST /v1/messages``: chats in Anthropic's dialect."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

import msgspec

from penstock.frontend.outputs import CompletionOutput, RequestOutput
from penstock.server.anthropic import errors
from penstock.server.anthropic.blocks import Blocks
from penstock.server.anthropic.input import NAMES, as_chat
from penstock.server.anthropic.protocol import (
    Count,
    CountRequest,
    MessageAnswer,
    MessageDelta,
    MessageEvent,
    MessageRequest,
    MessageUsage,
    StopReason,
)
from penstock.server.errors import ApiError
from penstock.server.fanout import last, merged
from penstock.server.meter import Meter
from penstock.server.openai.choice_stream import ChoiceStream
from penstock.server.openai.prepare import PreparedChat, chat_tokens, prepare_chat
from penstock.server.serving import Serving


@dataclass(frozen=True)
class End:
    """Why a message has ended."""

    reason: StopReason
    sequence: str | None = None
    """The stop sequence that it has come to."""


class MessageJob:
    """One validated request for a message."""

    def __init__(self, request: MessageRequest, chat: PreparedChat) -> None:
        self._request = request
        self._chat = chat
        self._id = f"msg_{uuid.uuid4().hex}"
        self._blocks = Blocks(lambda: f"toolu_{uuid.uuid4().hex[:24]}")

    @classmethod
    async def prepare(cls, request: MessageRequest, serving: Serving, meter: Meter) -> MessageJob:
        """Validate a request. Raises ApiError or RequestError for what is refused before the engine
        runs."""
        return cls(request, await prepare_chat(as_chat(request), serving, meter, NAMES))

    async def answer(self) -> bytes:
        """The whole answer as JSON."""
        (output,) = await last([self._chat.generation(self._id)])
        (choice,) = output.outputs
        for _ in self._blocks.take(self._chat.reading.read(choice.text)):
            pass
        for _ in self._blocks.finish():
            pass
        return msgspec.json.encode(self._message(output, self._end(choice)))

    async def events(self) -> AsyncGenerator[bytes, None]:
        """The answer as server-sent events."""
        stream = ChoiceStream(self._chat.reading)
        output: RequestOutput | None = None
        begun = False
        async with aclosing(merged([self._chat.generation(self._id)])) as outputs:
            async for _, output in outputs:
                if not begun:
                    begun = True
                    yield _event(MessageEvent(type="message_start", message=self._message(output)))
                new = stream.take(output.outputs[0])
                if new:
                    for event in self._blocks.take(new):
                        yield _event(event)
        assert output is not None
        for event in self._blocks.finish():
            yield _event(event)
        end = self._end(output.outputs[0])
        delta = MessageDelta(stop_reason=end.reason, stop_sequence=end.sequence)
        yield _event(MessageEvent(type="message_delta", delta=delta, usage=_usage(output)))
        yield _event(MessageEvent(type="message_stop"))

    def error(self, failure: ApiError) -> bytes:
        """The event that says why a stream ends early."""
        return errors.event(failure)

    def _message(self, output: RequestOutput, end: End | None = None) -> MessageAnswer:
        """The message so far; without ``end`` it goes on."""
        return MessageAnswer(
            id=self._id,
            model=self._request.model,
            content=self._blocks.all(),
            stop_reason=None if end is None else end.reason,
            stop_sequence=None if end is None else end.sequence,
            usage=_usage(output),
        )

    def _end(self, choice: CompletionOutput) -> End:
        if choice.finish_reason == "length":
            return End("max_tokens")
        if self._blocks.called:
            return End("tool_use")
        if isinstance(choice.stop_reason, str):
            return End("stop_sequence", choice.stop_reason)
        return End("end_turn")


async def counted(request: CountRequest, serving: Serving) -> Count:
    """The tokens of a request's prompt. Raises ApiError or RequestError naming the field at
    fault."""
    return Count(input_tokens=len(await chat_tokens(as_chat(request), serving, NAMES)))


def _usage(output: RequestOutput) -> MessageUsage:
    cached = output.num_cached_tokens
    return MessageUsage(
        input_tokens=len(output.prompt_token_ids) - cached,
        cache_read_input_tokens=cached,
        output_tokens=output.outputs[0].num_tokens,
    )


def _event(event: MessageEvent) -> bytes:
    return b"event: " + event.type.encode() + b"\ndata: " + msgspec.json.encode(event) + b"\n\n"
