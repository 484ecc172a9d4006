"""The structs that ``POST /v1/messages`` takes and answers with. Nothing is stored."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from penstock.server.keeping import KeepSeconds


class ResultBlock(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A part of what a tool has returned: text, or what is refused."""

    type: Literal["text", "image", "document", "search_result"]
    text: str | None = None

    source: object = None
    title: object = None
    context: object = None
    content: object = None


class InputBlock(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One of several kinds, by ``type``; the blocks of an answer may be sent back as they are."""

    type: Literal[
        "text",
        "thinking",
        "redacted_thinking",
        "tool_use",
        "tool_result",
        "image",
        "document",
        "search_result",
    ]
    text: str | None = None

    thinking: str | None = None
    signature: str | None = None
    """Has no effect: reasoning is shown to the chat template as it is sent."""

    # A call of a tool.
    id: str | None = None
    name: str | None = None
    input: dict[str, object] | None = None

    # What a tool has returned.
    tool_use_id: str | None = None
    content: str | list[ResultBlock] | None = None

    # Kinds that are refused have these.
    data: object = None
    source: object = None
    title: object = None
    context: object = None


class InputMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    role: Literal["user", "assistant", "system"]
    content: str | list[InputBlock]


class SystemBlock(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="text"
):
    text: str


class MessageTool(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A function that the model may call."""

    name: str
    type: str | None = None
    """``custom``, the default, is the only one here."""
    description: str | None = None
    input_schema: dict[str, object] | None = None
    strict: bool | None = None
    """Whether the arguments are made to match the schema."""


class ToolChoice(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    """The tool that must be called, with the type ``tool``."""
    disable_parallel_tool_use: bool | None = None
    """Whether the answer ends with its first call."""


class JsonOutput(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="json_schema"
):
    schema: dict[str, object]


class OutputConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    format: JsonOutput | None = None


class Metadata(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    user_id: str | None = None
    """The end user whom the request is for; a caller's users share that caller's resources."""


class Asked(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the prompt of a message is made of."""

    model: str
    messages: list[InputMessage]
    system: str | list[SystemBlock] | None = None
    tools: list[MessageTool] | None = None
    tool_choice: ToolChoice | None = None
    output_config: OutputConfig | None = None
    chat_template_kwargs: dict[str, object] | None = None
    """An extension, under vLLM's name."""


class CountRequest(Asked, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The body of ``POST /v1/messages/count_tokens``."""


class MessageRequest(Asked, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The body of ``POST /v1/messages``."""

    max_tokens: int
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stop_sequences: list[str] | None = None
    metadata: Metadata | None = None

    # Extensions, under vLLM's names.
    min_p: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    priority: int | None = None
    cache_salt: str | None = None
    cache_keep_s: KeepSeconds | None = None

    @property
    def sequences(self) -> int:
        """How many it opens at once."""
        return 1


class Count(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of ``POST /v1/messages/count_tokens``."""

    input_tokens: int


class TextBlock(msgspec.Struct, frozen=True, kw_only=True, tag="text"):
    text: str


class ThinkingBlock(msgspec.Struct, frozen=True, kw_only=True, tag="thinking"):
    thinking: str
    signature: str = ""
    """Nothing is signed."""


class ToolUseBlock(msgspec.Struct, frozen=True, kw_only=True, tag="tool_use"):
    id: str
    """What the tool's result is sent back with."""
    name: str
    input: msgspec.Raw
    """A JSON object."""


Block = ThinkingBlock | TextBlock | ToolUseBlock
StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]


class MessageUsage(msgspec.Struct, frozen=True, kw_only=True):
    """The prompt has the tokens of the first three together."""

    input_tokens: int
    """Tokens of the prompt that were computed."""
    cache_creation_input_tokens: int = 0
    """Always 0: all computed tokens are kept while there is room, and counted above."""
    cache_read_input_tokens: int = 0
    """Tokens of the prompt that were found in the cache."""
    output_tokens: int


class MessageAnswer(msgspec.Struct, frozen=True, kw_only=True, tag="message"):
    id: str
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[Block]
    stop_reason: StopReason | None
    stop_sequence: str | None
    """The one of ``stop_sequences`` that has ended the answer."""
    usage: MessageUsage


class MessageDelta(msgspec.Struct, frozen=True, kw_only=True):
    """What is new of a block, by its type; or, without a type, why the message has ended."""

    type: Literal["text_delta", "thinking_delta", "input_json_delta"] | UnsetType = UNSET
    text: str | UnsetType = UNSET
    thinking: str | UnsetType = UNSET
    partial_json: str | UnsetType = UNSET
    stop_reason: StopReason | UnsetType = UNSET
    stop_sequence: str | UnsetType | None = UNSET


class ErrorDetail(msgspec.Struct, frozen=True, kw_only=True):
    type: str
    message: str
    code: str | UnsetType = UNSET
    """An extension: what OpenAI's clients are told, which is more precise."""


class MessageEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a stream; which of the fields it has follows from its type."""

    type: str
    message: MessageAnswer | UnsetType = UNSET
    index: int | UnsetType = UNSET
    """The place of a block."""
    content_block: Block | UnsetType = UNSET
    delta: MessageDelta | UnsetType = UNSET
    usage: MessageUsage | UnsetType = UNSET
    error: ErrorDetail | UnsetType = UNSET


class ErrorMessage(msgspec.Struct, frozen=True, kw_only=True, tag="error"):
    """The body of a response that refuses a request."""

    error: ErrorDetail
