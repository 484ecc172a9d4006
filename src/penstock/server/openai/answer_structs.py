"""The structs of OpenAI's answers; a field that is UNSET is left out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from penstock.frontend.outputs import Logprob, PositionLogprobs, RequestOutput
from penstock.tokenizer import Tokenizer


class PromptTokensDetails(msgspec.Struct, frozen=True):
    cached_tokens: int
    disk_tokens: int | UnsetType = UNSET
    """Number of cached tokens whose keys and values were read from disk; left out where it is 0."""
    host_tokens: int | UnsetType = UNSET
    """Number of those that came from the host's memory into a GPU's; left out where it is 0."""


class CompletionTokensDetails(msgspec.Struct, frozen=True):
    """Speculative decoding: drafted tokens that were accepted into the output, and that were
    rejected."""

    accepted_prediction_tokens: int
    rejected_prediction_tokens: int


class Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails | UnsetType = UNSET
    """Present only if tokens were drafted."""


PromptLogprobs = list[PositionLogprobs | None]
"""Log-probabilities of a prompt as in vLLM: for each token but the first, an object by token id."""


class CompletionLogprobs(msgspec.Struct, frozen=True):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]  # characters from the start of the choice's text


class CompletionChoice(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    """Present where the request had ``return_token_ids``; of a stream, with the first event."""
    token_ids: list[int] | UnsetType = UNSET
    """The tokens of the output, or of a stream's event, with those that end it."""


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """A complete response, or one event of a streamed response."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | UnsetType | None = UNSET


class TopLogprob(msgspec.Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[int]


class ChatLogprob(msgspec.Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct, frozen=True):
    content: list[ChatLogprob]
    refusal: None = None


class CalledFunction(msgspec.Struct, frozen=True):
    name: str
    arguments: str
    """JSON, as the model wrote it."""


class ToolCall(msgspec.Struct, frozen=True):
    id: str
    function: CalledFunction
    type: Literal["function"] = "function"


class ChatMessage(msgspec.Struct, frozen=True):
    content: str | None
    role: Literal["assistant"] = "assistant"
    refusal: None = None
    tool_calls: list[ToolCall] | UnsetType = UNSET
    function_call: CalledFunction | UnsetType = UNSET
    """The call, where the request used ``functions``."""
    reasoning_content: str | UnsetType = UNSET


class ChatChoice(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None
    stop_reason: int | str | None = None
    token_ids: list[int] | UnsetType = UNSET
    """The tokens of the output, where the request had ``return_token_ids``."""


class Chat(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class FunctionDelta(msgspec.Struct, frozen=True):
    arguments: str
    name: str | UnsetType = UNSET


class ToolCallDelta(msgspec.Struct, frozen=True):
    """A part of a tool call; the first part of each call has its id, type and name."""

    index: int
    function: FunctionDelta
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET


class ChatDelta(msgspec.Struct, frozen=True):
    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET
    function_call: FunctionDelta | UnsetType = UNSET


class ChatChunkChoice(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    token_ids: list[int] | UnsetType = UNSET
    """The tokens since the choice's event before, where the request had ``return_token_ids``."""


class ChatChunk(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | UnsetType | None = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    """The prompt's tokens: the first event has them, where the request had ``return_token_ids``."""


def usage(outputs: Sequence[RequestOutput], hidden_tokens: int = 0) -> Usage:
    """Counts over all prompts of one request; a prompt counts once whatever ``n`` is.

    ``hidden_tokens`` were generated for each choice but are not part of the answer.
    """
    prompt = sum(len(output.prompt_token_ids) for output in outputs)
    completion = sum(
        max(0, choice.num_tokens - hidden_tokens) for output in outputs for choice in output.outputs
    )
    cached = sum(output.num_cached_tokens for output in outputs)
    host = sum(output.num_host_tokens for output in outputs)
    disk = sum(output.num_restored_tokens for output in outputs) - host
    choices = [choice for output in outputs for choice in output.outputs]
    drafted = sum(choice.num_drafted_tokens for choice in choices)
    accepted = sum(choice.num_accepted_tokens for choice in choices)
    return Usage(
        prompt,
        completion,
        prompt + completion,
        PromptTokensDetails(cached, disk or UNSET, host or UNSET),
        CompletionTokensDetails(accepted, drafted - accepted) if drafted else UNSET,
    )


def completion_logprobs(
    positions: Sequence[PositionLogprobs], offset: int, top: int
) -> CompletionLogprobs:
    """``offset`` is where the text of the first token starts in the text of the choice."""
    tokens: list[str] = []
    logprobs: list[float | None] = []
    tops: list[dict[str, float] | None] = []
    offsets: list[int] = []
    for position in positions:
        own = next(iter(position.values()))
        tokens.append(_text(own))
        logprobs.append(own.logprob)
        by_text = {_text(own): own.logprob}
        for _, entry in likeliest(
            position, top
        ):  # of tokens that read the same, the likeliest stays
            by_text.setdefault(_text(entry), entry.logprob)
        tops.append(by_text)
        offsets.append(offset)
        offset += len(_text(own))
    return CompletionLogprobs(tokens, logprobs, tops if top else None, offsets)


def echoed_logprobs(
    text: str, first_token: str, positions: Sequence[PositionLogprobs | None], top: int
) -> CompletionLogprobs:
    """The prompt's part of the logprobs of an echoing choice; its first token has none.

    That token need not be in the prompt's ``text``: tokenizers put one before it.
    """
    known = [position for position in positions if position is not None]
    first = CompletionLogprobs([first_token], [None], [None] if top else None, [0])
    offset = len(first_token) if text.startswith(first_token) else 0
    return joined(first, completion_logprobs(known, offset, top))


def joined(first: CompletionLogprobs, second: CompletionLogprobs) -> CompletionLogprobs:
    tops = None
    if first.top_logprobs is not None and second.top_logprobs is not None:
        tops = first.top_logprobs + second.top_logprobs
    return CompletionLogprobs(
        first.tokens + second.tokens,
        first.token_logprobs + second.token_logprobs,
        tops,
        first.text_offset + second.text_offset,
    )


def chat_logprobs(
    tokenizer: Tokenizer, positions: Sequence[PositionLogprobs], top: int
) -> ChatLogprobs:
    content = []
    for position in positions:
        token, own = next(iter(position.items()))
        tops = [
            TopLogprob(_text(entry), entry.logprob, list(tokenizer.pieces[other]))
            for other, entry in likeliest(position, top)
        ]
        content.append(ChatLogprob(_text(own), own.logprob, list(tokenizer.pieces[token]), tops))
    return ChatLogprobs(content)


def likeliest(position: PositionLogprobs, top: int) -> list[tuple[int, Logprob]]:
    """The ``top`` most likely entries; the chosen token is among them only if it is likely."""
    ranked = sorted(position.items(), key=lambda item: item[1].rank)
    return [item for item in ranked[:top] if item[1].rank <= top]


def _text(entry: Logprob) -> str:
    return entry.decoded_token or ""
