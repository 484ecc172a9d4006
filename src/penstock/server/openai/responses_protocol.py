"""What ``POST /v1/responses`` takes and answers with, as structs. Text alone, nothing is stored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import msgspec
from msgspec import UNSET, UnsetType

from penstock.server.openai.errors import ErrorBody
from penstock.server.openai.protocol import Strict
from penstock.server.openai.responses import ChatLogprob

LOGPROBS = "message.output_text.logprobs"
"""What ``include`` may hold."""

State = Literal["in_progress", "completed", "incomplete", "cancelled"]


class InputText(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A part of a message; parts of an answer may be sent back as they are."""

    type: Literal["input_text", "output_text", "refusal"]
    text: str | None = None
    refusal: str | None = None
    annotations: object = None
    logprobs: object = None


class InputMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[InputText]
    type: Literal["message"] = "message"
    id: str | None = None
    status: str | None = None
    phase: object = None


class ResponseRequest(Strict, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The body of ``POST /v1/responses``."""

    model: str
    input: str | list[InputMessage]
    instructions: str | None = None
    max_output_tokens: int | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_logprobs: int | None = None
    include: list[Literal["message.output_text.logprobs"]] | None = None
    metadata: dict[str, str] | None = None
    """Comes back with the answer."""
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    """The last three are accepted and unused."""

    # Extensions, under vLLM's names.
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    priority: int | None = None
    cache_salt: str | None = None
    chat_template_kwargs: dict[str, object] | None = None

    background: object = None
    context_management: object = None
    conversation: object = None
    max_tool_calls: object = None
    moderation: object = None
    parallel_tool_calls: object = None
    previous_response_id: object = None
    prompt: object = None
    prompt_cache_retention: object = None
    reasoning: object = None
    service_tier: object = None
    store: object = None
    stream_options: object = None
    text: object = None
    tool_choice: object = None
    tools: object = None
    truncation: object = None

    REFUSED: ClassVar[Mapping[str, tuple[object, ...]]] = {
        "background": (False,),
        "context_management": ([],),
        "conversation": (),
        "max_tool_calls": (),
        "moderation": (),
        "parallel_tool_calls": (True, False),
        "previous_response_id": (),
        "prompt": (),
        "prompt_cache_retention": (),
        "reasoning": ({},),
        "service_tier": ("auto", "default"),
        "store": (False,),
        "stream_options": ({}, {"include_obfuscation": False}),
        "text": ({}, {"format": {"type": "text"}}),
        "tool_choice": ("none", "auto"),
        "tools": ([],),
        "truncation": ("disabled",),
    }


class OutputText(msgspec.Struct, frozen=True, kw_only=True):
    type: Literal["output_text"] = "output_text"
    text: str
    annotations: list[str] = []
    logprobs: list[ChatLogprob] = []


class OutputMessage(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    status: State
    content: list[OutputText]


class IncompleteDetails(msgspec.Struct, frozen=True):
    reason: Literal["max_output_tokens"] = "max_output_tokens"


class InputDetails(msgspec.Struct, frozen=True):
    cached_tokens: int


class OutputDetails(msgspec.Struct, frozen=True):
    reasoning_tokens: int = 0


class ResponseUsage(msgspec.Struct, frozen=True, kw_only=True):
    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails = OutputDetails()
    total_tokens: int


class TextFormat(msgspec.Struct, frozen=True):
    type: Literal["text"] = "text"


class TextOptions(msgspec.Struct, frozen=True):
    format: TextFormat = TextFormat()


class Response(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["response"] = "response"
    created_at: int
    status: State
    error: ErrorBody | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str]
    model: str
    output: list[OutputMessage]
    parallel_tool_calls: bool = False
    previous_response_id: str | None = None
    store: bool = False
    temperature: float
    text: TextOptions = TextOptions()
    tool_choice: Literal["none"] = "none"
    tools: list[str] = []
    top_logprobs: int
    top_p: float
    truncation: Literal["disabled"] = "disabled"
    usage: ResponseUsage | None = None
    user: str | None = None


class ResponseEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a stream; which of the fields it has follows from its type."""

    type: str
    sequence_number: int
    response: Response | UnsetType = UNSET
    output_index: int | UnsetType = UNSET
    item: OutputMessage | UnsetType = UNSET
    item_id: str | UnsetType = UNSET
    content_index: int | UnsetType = UNSET
    part: OutputText | UnsetType = UNSET
    delta: str | UnsetType = UNSET
    text: str | UnsetType = UNSET
    logprobs: list[ChatLogprob] | UnsetType = UNSET
    code: str | UnsetType | None = UNSET
    message: str | UnsetType = UNSET
    param: str | UnsetType | None = UNSET
