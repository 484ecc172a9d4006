"""The bodies and answers of Text Generation Inference's endpoints."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

FinishReason = Literal["length", "eos_token", "stop_sequence"]
ErrorType = Literal["validation", "generation", "overloaded"]


class TgiGrammar(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the answer must be."""

    type: Literal["json", "json_schema", "regex"]
    value: str | dict[str, object]
    """A JSON schema, as an object or as text; with ``json_schema`` an object whose ``schema`` is
    one; or a regular expression."""


class TgiParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How the answer is sampled, and what is told of it."""

    do_sample: bool = False
    """Whether to sample; ``temperature``, ``top_k`` and ``top_p`` say so too, and without any of
    them decoding is greedy."""
    max_new_tokens: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    repetition_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    stop: list[str] = []
    """The answer ends with the first of these that appears, which stays in it."""
    truncate: int | None = None
    """Keeps only so many tokens of the prompt, its last."""
    best_of: int | None = None
    return_full_text: bool = False
    """Whether the text begins with the prompt."""
    details: bool = False
    """Whether a whole answer tells of its tokens. Streams always do, and with this of their end."""
    decoder_input_details: bool = False
    """Whether the details have the prompt's tokens."""
    top_n_tokens: int | None = None
    grammar: TgiGrammar | None = None


class TgiAsked(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the bodies share."""

    inputs: str
    parameters: TgiParameters = TgiParameters()

    # Extensions: the names are those of the other dialects.
    model: str
    priority: int | None = None
    cache_salt: str | None = None

    @property
    def sequences(self) -> int:
        """How many it opens at once."""
        return max(self.parameters.best_of or 1, 1)


class TgiGenerateRequest(TgiAsked, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The body of ``POST /generate``."""

    @property
    def stream(self) -> bool:
        return False


class TgiStreamRequest(TgiAsked, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The body of ``POST /generate_stream``."""

    @property
    def stream(self) -> bool:
        return True


class TgiRequest(TgiAsked, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The body of ``POST /``."""

    stream: bool = False


AnyTgiRequest = TgiGenerateRequest | TgiStreamRequest | TgiRequest


class PrefillToken(msgspec.Struct, frozen=True, kw_only=True):
    """A token of the prompt."""

    id: int
    text: str
    logprob: float | None
    """None for the first."""


class GeneratedToken(msgspec.Struct, frozen=True, kw_only=True):
    id: int
    text: str
    """The text that the token completes; none for a part of a character. The name of a special
    token, which is not in the answer's text."""
    logprob: float
    special: bool


class BestOfSequence(msgspec.Struct, frozen=True, kw_only=True):
    """One of the sequences, the best one's details left out."""

    generated_text: str
    finish_reason: FinishReason
    generated_tokens: int
    seed: int | None
    prefill: list[PrefillToken]
    tokens: list[GeneratedToken]
    top_tokens: list[list[GeneratedToken]] | UnsetType = UNSET


class GenerationDetails(msgspec.Struct, frozen=True, kw_only=True):
    finish_reason: FinishReason
    generated_tokens: int
    seed: int | None
    """The seed of sampling; None for greedy decoding."""
    prefill: list[PrefillToken]
    tokens: list[GeneratedToken]
    top_tokens: list[list[GeneratedToken]] | UnsetType = UNSET
    """The most likely tokens at the place of each token, where ``top_n_tokens`` asks for them."""
    best_of_sequences: list[BestOfSequence] | UnsetType = UNSET
    """The others, best first."""


class TgiGenerated(msgspec.Struct, frozen=True, kw_only=True):
    """A whole answer."""

    generated_text: str
    details: GenerationDetails | UnsetType = UNSET


class StreamDetails(msgspec.Struct, frozen=True, kw_only=True):
    finish_reason: FinishReason
    generated_tokens: int
    seed: int | None
    input_length: int
    """Tokens of the prompt."""


class TgiStreamed(msgspec.Struct, frozen=True, kw_only=True):
    """One token of a stream."""

    index: int
    """Counted from 1."""
    token: GeneratedToken
    top_tokens: list[GeneratedToken] | UnsetType = UNSET
    generated_text: str | None = None
    """The whole text, with the last token."""
    details: StreamDetails | None = None


class TgiError(msgspec.Struct, frozen=True, kw_only=True):
    """Why a request is refused, or the last event of a stream that ends early."""

    error: str
    error_type: ErrorType
    code: str | UnsetType = UNSET
    """An extension: what OpenAI's clients are told, which is more precise."""


class TgiInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of ``GET /info``. What this server has not, or does not know, is null."""

    model_id: str
    model_sha: str | None = None
    model_dtype: str | None = None
    model_device_type: str | None = None
    model_pipeline_tag: str = "text-generation"
    max_best_of: int
    max_stop_sequences: int
    max_input_tokens: int
    max_input_length: int
    """The same by an older name."""
    max_total_tokens: int
    max_client_batch_size: int = 1
    """Prompts of one request."""
    router: str = "penstock"
    version: str
    sha: str | None = None
    docker_label: str | None = None
