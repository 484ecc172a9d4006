"""``POST /api/generate`` and ``POST /api/chat``: answers in lines of JSON."""

from __future__ import annotations

import datetime
import uuid
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, Final

import msgspec
from msgspec import UNSET

from penstock.frontend.outputs import CompletionOutput, PositionLogprobs, RequestOutput
from penstock.parsing.answer_parser import AnswerDelta
from penstock.server.errors import ApiError
from penstock.server.fanout import last, merged
from penstock.server.last_tokens import looking_back
from penstock.server.meter import Meter
from penstock.server.ollama import errors
from penstock.server.ollama.input import (
    CHAT,
    GENERATE,
    is_continued,
    of_chat,
    of_prompt,
    of_raw,
)
from penstock.server.ollama.protocol import (
    ChatLine,
    GenerateLine,
    GenerateRequest,
    Line,
    LineCall,
    LineFunction,
    LineMessage,
    OllamaAsked,
    OllamaChatRequest,
)
from penstock.server.openai import answer_structs
from penstock.server.openai.choice_stream import ChoiceStream
from penstock.server.openai.prepare import PreparedChat, prepare_chat, prepare_raw
from penstock.server.openai.prompts import gap_of
from penstock.server.openai.protocol import ChatRequest
from penstock.server.openai.sampling import chat_params
from penstock.server.serving import Serving

_NS: Final = 10**9


class _AnswerJob(ABC):
    """One validated request, or one that asks for nothing and so for the model to be loaded."""

    def __init__(self, request: OllamaAsked, chat: PreparedChat | None) -> None:
        self._request = request
        self._chat = chat
        self._id = f"ollama-{uuid.uuid4().hex}"

    @abstractmethod
    def _line(self, new: AnswerDelta, output: RequestOutput | None, rest: dict[str, Any]) -> Line:
        """A line of the answer with ``rest`` of its fields; of its end with the ``output``."""

    async def answer(self) -> bytes:
        """The whole answer as JSON."""
        if self._chat is None:
            return msgspec.json.encode(self._loaded())
        (output,) = await last([self._chat.generation(self._id)])
        (choice,) = output.outputs
        new = self._chat.reading.read(choice.text)
        return msgspec.json.encode(self._end(new, output, choice.logprobs))

    async def events(self) -> AsyncGenerator[bytes, None]:
        """The answer as lines of JSON."""
        if self._chat is None:
            yield msgspec.json.encode(self._loaded()) + b"\n"
            return
        stream = ChoiceStream(self._chat.reading, eager=False)
        output: RequestOutput | None = None
        async with aclosing(merged([self._chat.generation(self._id)])) as outputs:
            async for _, output in outputs:
                new = stream.take(output.outputs[0])
                if new:
                    line = self._line(new, None, self._rest(False, stream.take_logprobs()))
                    yield msgspec.json.encode(line) + b"\n"
        assert output is not None
        end = self._end(AnswerDelta(), output, stream.take_logprobs())
        yield msgspec.json.encode(end) + b"\n"

    def error(self, failure: ApiError) -> bytes:
        """The line that says why a stream ends early."""
        return errors.line(failure)

    def _loaded(self) -> Line:
        return self._line(AnswerDelta(), None, {**self._rest(True, None), "done_reason": "load"})

    def _end(
        self, new: AnswerDelta, output: RequestOutput, logprobs: list[PositionLogprobs] | None
    ) -> Line:
        (choice,) = output.outputs
        return self._line(new, output, {**self._rest(True, logprobs), **_timings(output, choice)})

    def _rest(self, done: bool, positions: Sequence[PositionLogprobs] | None) -> dict[str, Any]:
        """The fields that all lines have."""
        rest = {"model": self._request.model, "created_at": _now(), "done": done}
        if self._request.logprobs and positions:
            assert self._chat is not None
            tokenizer, top = self._chat.engine.tokenizer, self._request.top_logprobs or 0
            rest["logprobs"] = answer_structs.chat_logprobs(tokenizer, positions, top).content
        return rest


class GenerateJob(_AnswerJob):
    """An answer to a prompt, or what continues it."""

    @classmethod
    async def prepare(cls, request: GenerateRequest, serving: Serving, meter: Meter) -> GenerateJob:
        """Validate a request. Raises ApiError or RequestError for what is refused before the engine
        runs."""
        if not request.prompt and not request.suffix:
            _check_options(of_prompt(request), serving)
            return cls(request, None)
        if is_continued(request):
            asked = of_raw(request)
            gap = gap_of(asked, serving.engine)
            if gap is not None:
                asked = msgspec.structs.replace(asked, stop_token_ids=list(gap.ends))
            asked = looking_back(asked, serving.engine.model.sampling_defaults)
            return cls(request, await prepare_raw(asked, serving, meter, GENERATE))
        chat = looking_back(of_prompt(request), serving.engine.model.sampling_defaults)
        return cls(request, await prepare_chat(chat, serving, meter, GENERATE))

    def _line(self, new: AnswerDelta, output: RequestOutput | None, rest: dict[str, Any]) -> Line:
        ids = [] if output is None else [*output.prompt_token_ids, *output.outputs[0].token_ids]
        return GenerateLine(
            **rest, response=new.content, thinking=new.reasoning or UNSET, context=ids or UNSET
        )


class ChatJob(_AnswerJob):
    """An answer to the messages of a chat."""

    @classmethod
    async def prepare(cls, request: OllamaChatRequest, serving: Serving, meter: Meter) -> ChatJob:
        """Validate a request. Raises ApiError or RequestError for what is refused before the engine
        runs."""
        if not request.messages:
            _check_options(of_chat(request), serving)
            return cls(request, None)
        chat = looking_back(of_chat(request), serving.engine.model.sampling_defaults)
        return cls(request, await prepare_chat(chat, serving, meter, CHAT))

    def _line(self, new: AnswerDelta, output: RequestOutput | None, rest: dict[str, Any]) -> Line:
        calls = [
            LineCall(
                function=LineFunction(
                    name=call.name, arguments=msgspec.Raw(call.arguments.encode() or b"{}")
                )
            )
            for call in new.calls
            if call.name is not None  # without eagerness a call comes whole
        ]
        message = LineMessage(
            content=new.content, thinking=new.reasoning or UNSET, tool_calls=calls or UNSET
        )
        return ChatLine(**rest, message=message)


def _check_options(chat: ChatRequest, serving: Serving) -> None:
    """Raise ApiError or RequestError for options that nothing is sampled by, where a request only
    loads the model; how many tokens fit is known with a prompt."""
    unlimited = msgspec.structs.replace(chat, max_completion_tokens=None, max_tokens=None)
    chat_params(unlimited, serving.engine.model, 0)


def _timings(output: RequestOutput, choice: CompletionOutput) -> dict[str, Any]:
    """The fields that an answer ends with."""
    times = output.metrics
    first = times.first_token_time or times.arrival_time
    end = times.last_token_time or first
    return {
        "done_reason": "length" if choice.finish_reason == "length" else "stop",
        "total_duration": int((end - times.arrival_time) * _NS),
        "load_duration": 0,
        "prompt_eval_count": len(output.prompt_token_ids),
        "prompt_eval_duration": int((first - times.arrival_time) * _NS),
        "eval_count": choice.num_tokens,
        "eval_duration": int((end - first) * _NS),
    }


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat().replace("+00:00", "Z")
