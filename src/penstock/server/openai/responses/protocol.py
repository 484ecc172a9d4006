"""The structs that ``/v1/responses`` takes and answers with."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType, field

from penstock.server.errors import ErrorBody
from penstock.server.keeping import KeepSeconds
from penstock.server.openai.answer_structs import ChatLogprob
from penstock.server.openai.protocol import JsonObjectFormat, TextFormat

LOGPROBS = "message.output_text.logprobs"
"""What ``include`` may hold."""

State = Literal["in_progress", "completed", "incomplete", "cancelled"]


class InputText(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A part of an item; parts of an answer may be sent back as they are."""

    type: Literal["input_text", "output_text", "refusal", "reasoning_text", "summary_text"]
    text: str | None = None
    refusal: str | None = None


class InputItem(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One of several kinds, by ``type``; the items of an answer may be sent back as they are."""

    type: Literal["message", "function_call", "function_call_output", "reasoning"] = "message"
    id: str | None = None
    status: str | None = None
    phase: object = None

    # A message; the content of reasoning is parts alone.
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: str | list[InputText] | None = None

    # A call, and its output.
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[InputText] | None = None
    caller: object = None
    namespace: object = None
    is_async: object = field(default=None, name="async")

    # Reasoning.
    summary: list[InputText] | None = None


class FunctionTool(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A function that the model may call."""

    type: Literal["function"]
    name: str
    description: str | None = None
    parameters: dict[str, object] | None = None
    strict: bool | None = None


class NamedTool(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="function"
):
    """The function that must be called."""

    name: str


class AllowedTools(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="allowed_tools"
):
    """Functions that may be called, or one of which must be."""

    mode: Literal["auto", "required"]
    tools: list[NamedTool]


ToolChoice = str | NamedTool | AllowedTools


class SchemaFormat(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="json_schema"
):
    """``name`` and ``description`` have no effect; the schema binds whatever ``strict`` says."""

    name: str
    schema: dict[str, object]
    description: str | None = None
    strict: bool | None = None


class TextOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: TextFormat | JsonObjectFormat | SchemaFormat = TextFormat()


class ResponseRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The body of ``POST /v1/responses``."""

    model: str
    input: str | list[InputItem]
    instructions: str | None = None
    previous_response_id: str | None = None
    """A response that is kept, after whose conversation ``input`` stands."""
    store: bool | None = None
    """Whether the response is kept; the default is true."""
    max_output_tokens: int | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_logprobs: int | None = None
    include: list[Literal["message.output_text.logprobs"]] | None = None
    metadata: dict[str, str] | None = None
    """Comes back with the answer."""
    text: TextOptions | None = None
    tools: list[FunctionTool] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    user: str | None = None
    """Comes back with the answer."""
    safety_identifier: str | None = None
    """The same as ``user``, by its newer name, which goes before it."""

    # Extensions, under vLLM's names.
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    priority: int | None = None
    cache_salt: str | None = None
    cache_keep_s: KeepSeconds | None = None
    chat_template_kwargs: dict[str, object] | None = None

    @property
    def sequences(self) -> int:
        """How many it opens at once."""
        return 1


class OutputText(msgspec.Struct, frozen=True, kw_only=True, tag="output_text"):
    text: str
    annotations: list[str] = []
    logprobs: list[ChatLogprob] = []


class OutputMessage(msgspec.Struct, frozen=True, kw_only=True, tag="message"):
    id: str
    role: Literal["assistant"] = "assistant"
    status: State
    content: list[OutputText]


class ReasoningText(msgspec.Struct, frozen=True, kw_only=True, tag="reasoning_text"):
    text: str


class ReasoningItem(msgspec.Struct, frozen=True, kw_only=True, tag="reasoning"):
    id: str
    status: State
    summary: list[str] = []
    content: list[ReasoningText]


class FunctionCall(msgspec.Struct, frozen=True, kw_only=True, tag="function_call"):
    id: str
    call_id: str
    """What the output of the function is sent back with."""
    name: str
    arguments: str
    """JSON, as the model wrote it."""
    status: State


Item = ReasoningItem | OutputMessage | FunctionCall


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
    output: list[Item]
    parallel_tool_calls: bool = True
    previous_response_id: str | None = None
    store: bool
    temperature: float
    text: TextOptions = TextOptions()
    tool_choice: ToolChoice = "auto"
    tools: list[FunctionTool] = []
    top_logprobs: int
    top_p: float
    truncation: Literal["disabled"] = "disabled"
    usage: ResponseUsage | None = None
    user: str | None = None


class ResponseDeleted(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["response"] = "response"
    deleted: bool = True


class ResponseItems(msgspec.Struct, frozen=True, kw_only=True):
    """Items of a response's input."""

    object: Literal["list"] = "list"
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool


class ResponseEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a stream; which of the fields it has follows from its type."""

    type: str
    sequence_number: int
    response: Response | UnsetType = UNSET
    output_index: int | UnsetType = UNSET
    item: Item | UnsetType = UNSET
    item_id: str | UnsetType = UNSET
    content_index: int | UnsetType = UNSET
    part: OutputText | ReasoningText | UnsetType = UNSET
    delta: str | UnsetType = UNSET
    text: str | UnsetType = UNSET
    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET
    logprobs: list[ChatLogprob] | UnsetType = UNSET
    code: str | UnsetType | None = UNSET
    message: str | UnsetType = UNSET
    param: str | UnsetType | None = UNSET
