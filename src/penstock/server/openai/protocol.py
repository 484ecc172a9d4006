"""The bodies that OpenAI's endpoints take, as strict structs.

Their fields are those that are acted on. What clients send besides is in ``field_table.py``; a
field that is in neither is refused by name.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from penstock.server.keeping import KeepSeconds

Prompt = str | list[str | int | list[int]]
Role = Literal["system", "developer", "user", "assistant", "tool", "function"]


def count_prompts(prompt: Prompt) -> int:
    """How many there are: one text, one list of token ids, or the entries of a list."""
    if isinstance(prompt, str) or not prompt or isinstance(prompt[0], int):
        return 1
    return len(prompt)


class StreamOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    """Whether every event reports the usage so far, as in vLLM; needs ``include_usage``."""


class StructuredOutputs(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A constraint on the output, under vLLM's names: one of these fields."""

    json: dict[str, object] | str | None = None
    """A JSON schema, as an object or as text."""
    regex: str | None = None
    grammar: str | None = None
    """A grammar in Lark's notation."""
    choice: list[str] | None = None
    json_object: bool | None = None
    """True to require any JSON object."""


class TextFormat(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="text"):
    """Any text."""


class JsonObjectFormat(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="json_object"):
    """Any JSON object."""


class NamedSchema(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``name`` and ``description`` have no effect; the schema binds whatever ``strict`` says."""

    name: str
    schema: dict[str, object]
    description: str | None = None
    strict: bool | None = None


class JsonSchemaFormat(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="json_schema"):
    json_schema: NamedSchema


ResponseFormat = TextFormat | JsonObjectFormat | JsonSchemaFormat


class Sampling(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Fields that completions and chats share. ``null`` means the default, as in OpenAI's API."""

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
    """The end user whom the request is for; a caller's users share that caller's resources."""
    safety_identifier: str | None = None
    """The newer name of ``user``, which takes precedence over it."""

    # Extensions, under vLLM's names.
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    repeat_last_n: int | None = None
    """llama-server's: how many last tokens all three penalties look at."""
    ignore_eos: bool | None = None
    min_tokens: int | None = None
    stop_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    allowed_token_ids: list[int] | None = None
    prompt_logprobs: int | None = None
    truncate_prompt_tokens: int | None = None
    return_token_ids: bool | None = None
    """Whether the answer has the token ids of prompt and output."""
    priority: int | None = None
    cache_salt: str | None = None
    cache_keep_s: KeepSeconds | None = None
    """Seconds for which the prompt is to stay on disk at least."""
    add_special_tokens: bool | None = None
    skip_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None
    use_beam_search: bool | None = None
    """Whether the ``n`` answers are the best of as many beams, or of ``best_of``."""
    length_penalty: float | None = None
    early_stopping: bool | None = None

    guided_json: dict[str, object] | str | None = None
    guided_regex: str | None = None
    guided_grammar: str | None = None
    guided_choice: list[str] | None = None
    structured_outputs: StructuredOutputs | None = None
    """The same constraints under vLLM's newer names."""

    @property
    def sequences(self) -> int:
        """How many it opens at once, if it can be served."""
        return max(self.n or 1, 1)


class CompletionRequest(Sampling, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The body of ``POST /v1/completions``."""

    prompt: Prompt
    suffix: str | None = None
    """What is behind the gap that the answer fills, before which the prompt is; empty: nothing."""
    echo: bool | None = None
    logprobs: int | None = None
    best_of: int | None = None
    response_format: ResponseFormat | None = None

    @property
    def sequences(self) -> int:
        return max(self.n or 1, self.best_of or 1, 1) * count_prompts(self.prompt)


class MessageFunction(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    name: str
    arguments: str


class MessageCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A call that an assistant's message made."""

    id: str
    type: Literal["function"] = "function"
    function: MessageFunction


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One message of a chat. What an assistant's answer holds besides text may come back empty."""

    role: Role
    content: str | list[dict[str, object]] | None = None
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: list[MessageCall] | None = None
    function_call: MessageFunction | None = None
    """The single call of the older form, before ``tool_calls``."""
    reasoning_content: str | None = None
    """Reasoning of an assistant message, as the answer gave it, for chat templates that use it."""
    refusal: str | None = None


class PredictedPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    type: Literal["text"]
    text: str


class Prediction(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What much of the answer is expected to be, such as the file that it changes a little."""

    type: Literal["content"]
    content: str | list[PredictedPart]

    @property
    def text(self) -> str:
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content)


class ChatRequest(Sampling, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The body of ``POST /v1/chat/completions``."""

    messages: list[Message]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    add_generation_prompt: bool | None = None
    """The default is true, or false where the last message is continued."""
    continue_final_message: bool | None = None
    """Whether the answer goes on with the last message instead of beginning a new one."""
    chat_template_kwargs: dict[str, object] | None = None

    tools: list[dict[str, object]] | None = None
    tool_choice: str | dict[str, object] | None = None
    parallel_tool_calls: bool | None = None
    functions: list[dict[str, object]] | None = None
    """Tools in the older form, before ``tools``; ``function_call`` is their choice."""
    function_call: str | dict[str, object] | None = None
    response_format: ResponseFormat | None = None
    prediction: Prediction | None = None
