"""Turns the requests of Ollama's endpoints into equal requests in OpenAI's dialect."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeVar

import msgspec

from penstock.server.errors import ApiError
from penstock.server.ollama.protocol import (
    GenerateRequest,
    OllamaAsked,
    OllamaCall,
    OllamaChatRequest,
    OllamaMessage,
)
from penstock.server.openai.names import Names
from penstock.server.openai.protocol import (
    ChatRequest,
    CompletionRequest,
    JsonObjectFormat,
    JsonSchemaFormat,
    Message,
    MessageCall,
    MessageFunction,
    NamedSchema,
    ResponseFormat,
    Sampling,
)

CHAT: Final = Names("options.num_predict", "format", "format", ".function")
GENERATE: Final = Names("options.num_predict", "format", "format", messages="prompt")
"""What the endpoints call the fields of a chat."""


def of_chat(request: OllamaChatRequest) -> ChatRequest:
    """Return the request as a chat. Raises ApiError naming the field at fault."""
    chat = ChatRequest(model=request.model, messages=_messages(request.messages))
    sampled = _sampled(chat, request)
    return msgspec.structs.replace(
        sampled,
        max_tokens=None,
        max_completion_tokens=sampled.max_tokens,
        tools=request.tools,
        response_format=_format(request),
        logprobs=request.logprobs,
        top_logprobs=request.top_logprobs,
        chat_template_kwargs=request.chat_template_kwargs,
    )


def of_prompt(request: GenerateRequest) -> ChatRequest:
    """Return a request to generate, which is not raw, as a chat of one message.

    Raises ApiError naming the field at fault.
    """
    messages = [OllamaMessage(role="user", content=request.prompt)]
    if request.system is not None:
        messages.insert(0, OllamaMessage(role="system", content=request.system))
    return of_chat(
        OllamaChatRequest(
            model=request.model,
            options=request.options,
            format=request.format,
            logprobs=request.logprobs,
            top_logprobs=request.top_logprobs,
            priority=request.priority,
            cache_salt=request.cache_salt,
            chat_template_kwargs=request.chat_template_kwargs,
            messages=messages,
        )
    )


def is_continued(request: GenerateRequest) -> bool:
    """Whether a request to generate is for what continues its prompt, and no chat."""
    return request.raw or bool(request.suffix)


def of_raw(request: GenerateRequest) -> CompletionRequest:
    """Return a request to generate whose prompt is continued as a completion. Raises ApiError
    naming the field at fault."""
    if request.system is not None:
        what = "prompt before a gap" if request.suffix else "raw prompt"
        raise ApiError(
            400,
            f"system: a {what} is taken as it is; write it there",
            param="system",
        )
    top = request.top_logprobs or 0
    asked = CompletionRequest(
        model=request.model, prompt=request.prompt, suffix=request.suffix or None
    )
    return msgspec.structs.replace(
        _sampled(asked, request),
        response_format=_format(request),
        logprobs=top if request.logprobs else None,
    )


Asked = TypeVar("Asked", bound=Sampling)


def _sampled(asked: Asked, request: OllamaAsked) -> Asked:
    """``asked``, with the options of ``request``."""
    options = request.options
    predict = options.num_predict
    return msgspec.structs.replace(
        asked,
        max_tokens=None if predict is None or predict < 0 else predict,
        seed=options.seed,
        temperature=options.temperature,
        top_k=options.top_k,
        top_p=options.top_p,
        min_p=options.min_p,
        repetition_penalty=options.repeat_penalty,
        repeat_last_n=options.repeat_last_n,
        presence_penalty=options.presence_penalty,
        frequency_penalty=options.frequency_penalty,
        stop=options.stop,
        priority=request.priority,
        cache_salt=request.cache_salt,
    )


def _format(request: OllamaAsked) -> ResponseFormat | None:
    if not request.format:
        return None
    if request.format == "json":
        return JsonObjectFormat()
    assert isinstance(request.format, dict)
    return JsonSchemaFormat(NamedSchema(name="", schema=request.format))


def _messages(messages: Sequence[OllamaMessage]) -> list[Message]:
    """The messages of a chat, whose calls get ids: Ollama's have none."""
    found: list[Message] = []
    waiting: list[MessageCall] = []  # calls whose results have not come yet
    made = 0
    for i, message in enumerate(messages):
        _check_role(message, f"messages[{i}]")
        calls = [_call(call, made + k) for k, call in enumerate(message.tool_calls or [])]
        made += len(calls)
        call_id: str | None = None
        if message.role == "tool":
            call_id = _answered(waiting, message.tool_name)
            if call_id is None:
                call_id, made = _call_id(made), made + 1  # of a call that the client left out
        waiting += calls
        found.append(
            Message(
                role=message.role,
                content=message.content,
                reasoning_content=message.thinking,
                tool_calls=calls or None,
                tool_call_id=call_id,
                name=message.tool_name,
            )
        )
    return found


def _check_role(message: OllamaMessage, where: str) -> None:
    owners = {"thinking": "assistant", "tool_calls": "assistant", "tool_name": "tool"}
    for name, role in owners.items():
        if getattr(message, name) is not None and message.role != role:
            at = f"{where}.{name}"
            raise ApiError(400, f"{at} belongs to {role} messages only", param=at)


def _answered(waiting: list[MessageCall], name: str | None) -> str | None:
    """The id of the first call that has no result yet, of the function ``name`` if it is given;
    taken out of ``waiting``."""
    for call in waiting:
        if name in (None, call.function.name):
            waiting.remove(call)
            return call.id
    return None


def _call(call: OllamaCall, number: int) -> MessageCall:
    arguments = msgspec.json.encode(call.function.arguments).decode()
    function = MessageFunction(name=call.function.name, arguments=arguments)
    return MessageCall(id=_call_id(number), function=function)


def _call_id(number: int) -> str:
    """Nine letters and digits, which is what the strictest chat template takes."""
    return f"call{number:05d}"
