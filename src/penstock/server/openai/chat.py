"""``POST /v1/chat/completions``."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec

from penstock.frontend.outputs import CompletionOutput, PositionLogprobs, RequestOutput
from penstock.parsing.answer_parser import AnswerDelta
from penstock.server.errors import ApiError
from penstock.server.fanout import last, merged
from penstock.server.meter import Meter
from penstock.server.openai import answer_structs
from penstock.server.openai.answer_structs import (
    Chat,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatDelta,
    ChatLogprobs,
    PromptLogprobs,
    Usage,
)
from penstock.server.openai.choice_stream import ChoiceStream, finish_reason
from penstock.server.openai.functions import (
    is_old,
    old_delta,
    old_message,
    old_reason,
    with_tools,
)
from penstock.server.openai.names import CHAT, FUNCTIONS
from penstock.server.openai.prepare import PreparedChat, prepare_chat
from penstock.server.openai.protocol import ChatRequest
from penstock.server.serving import Serving
from penstock.server.sse import DONE, error_event, event


class ChatJob:
    """One validated chat completion request."""

    def __init__(self, chat: PreparedChat) -> None:
        self._chat = chat
        self._request = chat.request
        self._reading = chat.reading
        self._old = chat.names is FUNCTIONS
        self._with_ids = bool(chat.request.return_token_ids)
        self._id = f"chatcmpl-{uuid.uuid4().hex}"
        self._created = int(time.time())

    @classmethod
    async def prepare(cls, request: ChatRequest, serving: Serving, meter: Meter) -> ChatJob:
        """Validate a request. Raises ApiError or RequestError for what is refused before the engine
        runs."""
        names = FUNCTIONS if is_old(request) else CHAT
        return cls(await prepare_chat(with_tools(request), serving, meter, names))

    async def answer(self) -> bytes:
        """The whole answer as JSON."""
        (output,) = await last([self._chat.generation(self._id)])
        choices = [self._whole(choice) for choice in output.outputs]
        return msgspec.json.encode(
            Chat(
                id=self._id,
                created=self._created,
                model=self._request.model,
                choices=choices,
                usage=answer_structs.usage([output]),
                prompt_logprobs=self._prompt_logprobs(output),
                prompt_token_ids=output.prompt_token_ids if self._with_ids else msgspec.UNSET,
            )
        )

    async def events(self) -> AsyncGenerator[bytes, None]:
        """The answer as server-sent events: the role, then text as it comes, then why it ended."""
        options = self._request.stream_options
        with_usage = options is not None and bool(options.include_usage)
        continuous = options is not None and bool(options.continuous_usage_stats)
        usage: Usage | msgspec.UnsetType | None = None if with_usage else msgspec.UNSET
        streams: dict[int, ChoiceStream] = {}
        output: RequestOutput | None = None
        async with aclosing(merged([self._chat.generation(self._id)])) as outputs:
            async for _, output in outputs:
                if continuous:
                    usage = answer_structs.usage([output])
                if not streams:
                    for choice in output.outputs:
                        streams[choice.index] = ChoiceStream(self._reading)
                        yield event(self._opening(choice.index, output, usage))
                for choice in output.outputs:
                    stream = streams[choice.index]
                    delta = stream.take(choice)
                    if delta is None:
                        continue
                    part = ChatChunkChoice(
                        index=choice.index,
                        delta=self._delta(delta),
                        logprobs=self._logprobs(stream.take_logprobs()),
                        finish_reason=self._reason(choice.finish_reason, stream.called),
                        stop_reason=choice.stop_reason,
                        token_ids=stream.take_token_ids() if self._with_ids else msgspec.UNSET,
                    )
                    yield event(self._chunk([part], usage))
        if with_usage and output is not None:
            yield event(self._chunk([], answer_structs.usage([output])))
        yield DONE

    def error(self, failure: ApiError) -> bytes:
        return error_event(failure)

    def _whole(self, choice: CompletionOutput) -> ChatChoice:
        message, called = self._reading.message(choice.text)
        return ChatChoice(
            index=choice.index,
            message=old_message(message) if self._old else message,
            logprobs=self._logprobs(choice.logprobs),
            finish_reason=self._reason(choice.finish_reason, called),
            stop_reason=choice.stop_reason,
            token_ids=choice.token_ids if self._with_ids else msgspec.UNSET,
        )

    def _delta(self, new: AnswerDelta) -> ChatDelta:
        delta = self._reading.delta(new)
        return old_delta(delta) if self._old else delta

    def _reason(self, reason: str | None, called: bool) -> str | None:
        named = finish_reason(reason, called)
        return old_reason(named) if self._old else named

    def _logprobs(self, positions: list[PositionLogprobs] | None) -> ChatLogprobs | None:
        if not self._request.logprobs:
            return None
        top = self._request.top_logprobs or 0
        return answer_structs.chat_logprobs(self._chat.engine.tokenizer, positions or [], top)

    def _prompt_logprobs(self, output: RequestOutput) -> PromptLogprobs | msgspec.UnsetType:
        if self._request.prompt_logprobs is None:
            return msgspec.UNSET
        return output.prompt_logprobs or []

    def _opening(
        self, index: int, output: RequestOutput, usage: Usage | msgspec.UnsetType | None
    ) -> bytes:
        """The first chunk of a choice; that of choice 0 brings what belongs to the prompt."""
        choice = ChatChunkChoice(index=index, delta=ChatDelta("assistant", ""))
        if index > 0:
            return self._chunk([choice], usage)
        ids = output.prompt_token_ids if self._with_ids else msgspec.UNSET
        return self._chunk([choice], usage, self._prompt_logprobs(output), ids)

    def _chunk(
        self,
        choices: list[ChatChunkChoice],
        usage: Usage | msgspec.UnsetType | None,
        prompt_logprobs: PromptLogprobs | msgspec.UnsetType = msgspec.UNSET,
        prompt_token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET,
    ) -> bytes:
        return msgspec.json.encode(
            ChatChunk(
                id=self._id,
                created=self._created,
                model=self._request.model,
                choices=choices,
                usage=usage,
                prompt_logprobs=prompt_logprobs,
                prompt_token_ids=prompt_token_ids,
            )
        )
