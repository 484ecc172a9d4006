"""The structs of Ollama's endpoints that ask the model for something."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from penstock.server.openai.answer_structs import ChatLogprob

Format = Literal["", "json"] | dict[str, object]
"""Any text, any JSON, or JSON of a schema."""


class OllamaOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How the answer is sampled. What is left out is as the model's makers recommend."""

    num_predict: int | None = None
    """Most tokens of the answer; a negative number means as many as there is room for."""
    seed: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repeat_penalty: float | None = None
    repeat_last_n: int | None = None
    """How many last tokens of prompt and answer all penalties look at: -1 for all, and 0 for none.
    Without it as many as the model's makers say, or 64."""
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    stop: str | list[str] | None = None


class OllamaAsked(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What requests for an answer share."""

    model: str
    stream: bool = True
    options: OllamaOptions = OllamaOptions()
    format: Format | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None

    # Extensions, under vLLM's names.
    priority: int | None = None
    cache_salt: str | None = None
    chat_template_kwargs: dict[str, object] | None = None

    @property
    def sequences(self) -> int:
        """How many it opens at once."""
        return 1


class GenerateRequest(OllamaAsked, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The body of ``POST /api/generate``."""

    prompt: str = ""
    suffix: str = ""
    """What is behind a gap that the prompt is before: the answer fills it."""
    system: str | None = None
    raw: bool = False
    """Whether the prompt is continued as it is, without the chat template."""


class OllamaFunction(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    name: str
    arguments: dict[str, object]


class OllamaCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A call that an assistant's message made."""

    function: OllamaFunction


class OllamaMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    role: Literal["system", "user", "assistant", "tool"]
    content: str = ""
    thinking: str | None = None
    tool_calls: list[OllamaCall] | None = None
    tool_name: str | None = None
    """The function whose result a tool's message has."""


class OllamaChatRequest(OllamaAsked, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The body of ``POST /api/chat``."""

    messages: list[OllamaMessage] = []
    tools: list[dict[str, object]] | None = None


class EmbedRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The body of ``POST /api/embed``."""

    model: str
    input: str | list[str]
    dimensions: int | None = None
    priority: int | None = None
    cache_salt: str | None = None

    @property
    def sequences(self) -> int:
        """How many it opens at once."""
        return 1 if isinstance(self.input, str) else len(self.input)


class OldEmbedRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The body of ``POST /api/embeddings``."""

    model: str
    prompt: str

    @property
    def sequences(self) -> int:
        """How many it opens at once."""
        return 1


class Timings(msgspec.Struct, frozen=True, kw_only=True):
    """The end of an answer, with times in nanoseconds; unset before it."""

    done_reason: Literal["stop", "length", "load"] | UnsetType = UNSET
    total_duration: int | UnsetType = UNSET
    load_duration: int | UnsetType = UNSET
    """Always 0: the model is loaded before it is asked."""
    prompt_eval_count: int | UnsetType = UNSET
    prompt_eval_duration: int | UnsetType = UNSET
    """Until the first token, the queue included."""
    eval_count: int | UnsetType = UNSET
    eval_duration: int | UnsetType = UNSET


class Line(Timings, frozen=True, kw_only=True):
    """What the lines of both streams share; a whole answer is one line."""

    model: str
    created_at: str
    done: bool
    logprobs: list[ChatLogprob] | UnsetType = UNSET


class GenerateLine(Line, frozen=True, kw_only=True):
    response: str
    thinking: str | UnsetType = UNSET
    context: list[int] | UnsetType = UNSET
    """Tokens of prompt and answer, at the end."""


class LineFunction(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    arguments: msgspec.Raw
    """A JSON object."""


class LineCall(msgspec.Struct, frozen=True, kw_only=True):
    function: LineFunction


class LineMessage(msgspec.Struct, frozen=True, kw_only=True):
    role: Literal["assistant"] = "assistant"
    content: str
    thinking: str | UnsetType = UNSET
    tool_calls: list[LineCall] | UnsetType = UNSET
    """Whole calls alone: none comes in pieces."""


class ChatLine(Line, frozen=True, kw_only=True):
    message: LineMessage


class Embedded(msgspec.Struct, frozen=True, kw_only=True):
    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: int = 0
    prompt_eval_count: int


class OldEmbedded(msgspec.Struct, frozen=True, kw_only=True):
    embedding: list[float]
