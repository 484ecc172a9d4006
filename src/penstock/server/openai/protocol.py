"""The bodies that OpenAI's endpoints take, as strict structs.

A field that is not declared here is refused by name. Fields of OpenAI's API that mean work that
Penstock does not do are declared with type ``object`` and listed in ``REFUSED`` with the values
that ask for nothing; any other value is refused, never ignored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import ClassVar, Generic, Literal, TypeVar

import msgspec

from penstock.server.openai.errors import ApiError

Prompt = str | list[str | int | list[int]]
Role = Literal["system", "developer", "user", "assistant", "tool"]


class StreamOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None
    """Accepted as false or absent: padding against traffic analysis is not added."""


class Sampling(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What both endpoints share. ``null`` means the default everywhere, as in OpenAI's API."""

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    n: int | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[int, float] | None = None
    user: str | None = None
    """Accepted and unused: Penstock keeps no records by end user."""

    # Extensions, under vLLM's names.
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    ignore_eos: bool | None = None
    min_tokens: int | None = None
    stop_token_ids: list[int] | None = None
    prompt_logprobs: int | None = None
    priority: int | None = None
    cache_salt: str | None = None
    add_special_tokens: bool | None = None
    skip_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None

    REFUSED: ClassVar[Mapping[str, tuple[object, ...]]] = {}


class CompletionRequest(Sampling, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The body of ``POST /v1/completions``."""

    prompt: Prompt
    echo: bool | None = None
    logprobs: int | None = None
    best_of: int | None = None
    suffix: object = None

    REFUSED: ClassVar[Mapping[str, tuple[object, ...]]] = {"suffix": ("",)}


class MessageFunction(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    name: str
    arguments: str


class MessageCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A call that an assistant's message made."""

    id: str
    type: Literal["function"] = "function"
    function: MessageFunction
    index: int | None = None
    """Accepted and unused: clients that join deltas may leave it in."""


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One message of a chat. What an assistant's answer holds besides text may come back empty."""

    role: Role
    content: str | list[dict[str, object]] | None = None
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: list[MessageCall] | None = None
    function_call: object = None
    reasoning_content: str | None = None
    """Of an assistant's answer: as it was given, for the chat templates that want it back."""
    refusal: str | None = None
    audio: object = None
    annotations: object = None


class ChatRequest(Sampling, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The body of ``POST /v1/chat/completions``."""

    messages: list[Message]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, object] | None = None

    tools: object = None
    tool_choice: object = None
    parallel_tool_calls: object = None
    functions: object = None
    function_call: object = None
    response_format: object = None
    modalities: object = None
    audio: object = None
    prediction: object = None
    reasoning_effort: object = None
    verbosity: object = None
    web_search_options: object = None
    moderation: object = None
    metadata: object = None
    store: object = None
    service_tier: object = None
    prompt_cache_key: str | None = None
    """Accepted and unused: prefixes are found by content. ``cache_salt`` separates them."""
    prompt_cache_retention: object = None
    safety_identifier: str | None = None
    """Accepted and unused, like ``user``."""

    REFUSED: ClassVar[Mapping[str, tuple[object, ...]]] = {
        "functions": ([],),
        "function_call": ("none", "auto"),
        "response_format": ({"type": "text"},),
        "modalities": (["text"],),
        "audio": (),
        "prediction": (),
        "reasoning_effort": (),
        "verbosity": (),
        "web_search_options": (),
        "moderation": (),
        "metadata": ({},),
        "store": (False,),
        "service_tier": ("auto", "default"),
        "prompt_cache_retention": (),
    }


Body = TypeVar("Body", bound=Sampling)

_AT = re.compile(r"^(?P<what>.*?)(?: - at (?:`key` in )?`\$\.?(?P<path>[^`]*)`)?$", re.DOTALL)
_UNKNOWN = re.compile(r"unknown field `([^`]*)`")
_MISSING = re.compile(r"missing required field `([^`]*)`")


class BodyDecoder(Generic[Body]):
    """Decodes one kind of body; every complaint is an ApiError 400 that names the field."""

    def __init__(self, kind: type[Body]) -> None:
        self._decoder: msgspec.json.Decoder[Body] = msgspec.json.Decoder(kind)

    def decode(self, body: bytes) -> Body:
        try:
            request = self._decoder.decode(body)
        except msgspec.ValidationError as error:
            raise _invalid(str(error)) from None
        except RecursionError:
            raise ApiError(400, "the body is nested too deeply") from None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ApiError(400, f"the body is not valid JSON in UTF-8: {error}") from None
        _refuse(request)
        return request


def _invalid(text: str) -> ApiError:
    match = _AT.match(text)
    assert match is not None  # the pattern matches any text
    what, path = match["what"], match["path"] or ""
    if found := _UNKNOWN.search(what):
        field = f"{path}.{found[1]}" if path else found[1]
        return ApiError(400, f"unknown field {field!r}", param=field, code="unknown_parameter")
    if found := _MISSING.search(what):
        field = f"{path}.{found[1]}" if path else found[1]
        return ApiError(
            400, f"the field {field!r} is required", param=field, code="missing_required_parameter"
        )
    what = what.replace("`", "")
    message = f"{path}: {what[:1].lower()}{what[1:]}" if path else f"the body: {what}"
    return ApiError(400, message, param=path or None, code="invalid_type")


def _refuse(request: Sampling) -> None:
    for name, neutral in request.REFUSED.items():
        value = getattr(request, name)
        if value is None or any(type(value) is type(n) and value == n for n in neutral):
            continue
        allowed = " or ".join(msgspec.json.encode(n).decode() for n in (None, *neutral))
        raise ApiError(
            400,
            f"{name!r} is not supported by this server; leave it out (or {allowed})",
            param=name,
            code="unsupported_parameter",
        )
    options = request.stream_options
    if options is not None and not request.stream:
        raise ApiError(
            400, "stream_options is only allowed with stream=true", param="stream_options"
        )
    if options is not None and options.include_obfuscation:
        raise ApiError(
            400,
            "stream_options.include_obfuscation is not supported; leave it out or false",
            param="stream_options.include_obfuscation",
            code="unsupported_parameter",
        )
