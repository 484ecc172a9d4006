"""The bodies and answers of llama-server's endpoints."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from penstock.server.openai.protocol import Message

StopType = Literal["none", "eos", "limit", "word"]
LogitBias = dict[int, float] | list[list[int | float | bool]]
"""Biases by token, or pairs of a token and its bias, which may be false: the token is never
chosen."""


class LlamaAsked(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What requests for an answer share. What is left out is as the model's makers recommend."""

    n_predict: int = -1
    """Most tokens of the answer; a negative number means as many as there is room for, and with 0
    only the prompt is computed."""
    stream: bool = False
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
    seed: int | None = None
    """-1 means one that is drawn."""
    stop: str | list[str] | None = None
    ignore_eos: bool = False
    logit_bias: LogitBias | None = None
    n_probs: int = 0
    """How many likely tokens are told at the place of each token; with 0 none is."""
    return_tokens: bool = False
    timings_per_token: bool = False
    """Whether the events of a stream have timings before the last, too."""
    grammar: str = ""
    """What the answer must be, in GBNF."""
    json_schema: dict[str, object] | None = None
    response_fields: list[str] = []
    """What is told of the whole answer, or of a stream's end, each by its path of names between
    slashes; all where there is none."""

    # Extensions: the names are those of the other dialects.
    model: str
    priority: int | None = None
    cache_salt: str | None = None

    @property
    def sequences(self) -> int:
        """How many it opens at once."""
        return 1


class LlamaRequest(LlamaAsked, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The body of ``POST /completion``."""

    prompt: str | list[int]


class InfillExtra(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Another file, for the model to know."""

    filename: str = ""
    text: str


class InfillRequest(LlamaAsked, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The body of ``POST /infill``: the answer is what fills a gap in a text."""

    input_prefix: str
    """What is before the gap."""
    input_suffix: str
    """What is behind it."""
    input_extra: list[InfillExtra] = []
    prompt: str = ""
    """What the gap begins with."""


class LlamaTop(msgspec.Struct, frozen=True, kw_only=True):
    """A likely token."""

    id: int
    token: str
    bytes: list[int]
    logprob: float


class LlamaProbabilities(LlamaTop, frozen=True, kw_only=True):
    """A token of the answer, and the most likely ones at its place."""

    top_logprobs: list[LlamaTop]


class LlamaTimings(msgspec.Struct, frozen=True, kw_only=True):
    """Times in milliseconds."""

    cache_n: int
    """Tokens of the prompt that were in the cache."""
    prompt_n: int
    """Tokens of the prompt that were computed."""
    prompt_ms: float
    """Until the first token, the queue included."""
    prompt_per_token_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    """After the first token."""
    predicted_per_token_ms: float
    predicted_per_second: float


class LlamaSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How answers are sampled."""

    n_predict: int
    seed: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repeat_penalty: float
    repeat_last_n: int
    presence_penalty: float
    frequency_penalty: float
    stop: list[str]
    ignore_eos: bool
    n_probs: int


class LlamaPart(msgspec.Struct, frozen=True, kw_only=True):
    """What a whole answer and the events of a stream share."""

    index: int = 0
    content: str
    tokens: list[int]
    """Those of a stream's event, and of a whole answer where ``return_tokens`` asks for them."""
    stop: bool
    """Whether it is the end."""
    id_slot: int = -1
    """There are no slots."""
    tokens_predicted: int
    tokens_evaluated: int
    """Tokens of the prompt."""
    timings: LlamaTimings | UnsetType = UNSET
    completion_probabilities: list[LlamaProbabilities] | UnsetType = UNSET
    model: str | UnsetType = UNSET
    generation_settings: LlamaSettings | UnsetType = UNSET
    prompt: str | UnsetType = UNSET
    has_new_line: bool | UnsetType = UNSET
    truncated: bool | UnsetType = UNSET
    stop_type: StopType | UnsetType = UNSET
    stopping_word: str | UnsetType = UNSET
    tokens_cached: int | UnsetType = UNSET


class LlamaErrorDetail(msgspec.Struct, frozen=True, kw_only=True):
    code: int
    """The status of the response, or what it would have been."""
    message: str
    type: str
    reason: str | UnsetType = UNSET
    """An extension: the ``code`` that OpenAI's clients are told, which is more precise."""


class LlamaError(msgspec.Struct, frozen=True, kw_only=True):
    """Why a request is refused, or the last event of a stream that ends early."""

    error: LlamaErrorDetail


class TemplateRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The body of ``POST /apply-template``."""

    messages: list[Message]
    model: str
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, object] | None = None


class TemplatePrompt(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of ``POST /apply-template``."""

    prompt: str


class DefaultSettings(msgspec.Struct, frozen=True, kw_only=True):
    n_ctx: int
    """Tokens that prompt and answer may have together."""
    params: LlamaSettings


class LlamaModalities(msgspec.Struct, frozen=True, kw_only=True):
    vision: bool = False
    audio: bool = False


class LlamaProps(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of ``GET /props``."""

    default_generation_settings: DefaultSettings
    total_slots: int
    """Sequences that run at once."""
    model_alias: str
    chat_template: str
    bos_token: str
    eos_token: str
    modalities: LlamaModalities = LlamaModalities()
    build_info: str
    is_sleeping: bool = False


class LlamaSlot(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of ``GET /slots``: room for one sequence that runs. Which of them has it is no
    matter."""

    id: int
    n_ctx: int
    is_processing: bool
