"""The bodies and answers of ``/classify``, ``/score``, ``/rerank`` and ``/pooling``."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from penstock.pooling.params import PoolingKind
from penstock.server.openai.protocol import Message, Prompt, count_prompts
from penstock.server.openai.vectors import MAX_AT_ONCE


class Ranked(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Fields that the bodies share, all of which but ``model`` and the end user are extensions."""

    model: str
    user: str | None = None
    safety_identifier: str | None = None
    dimensions: int | None = None
    pooling: PoolingKind | None = None
    priority: int | None = None
    cache_salt: str | None = None
    add_special_tokens: bool | None = None


class PairRequest(Ranked, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Fields of the bodies that are about pairs. Where the model classifies, those of embeddings
    (``dimensions``, ``pooling``) are refused, and of others these."""

    instruction: str | None = None
    """What a document is to be judged by, where the model's template has a place for it."""
    use_activation: bool | None = None
    """Whether scores are what the model's labels make of logits; the default is true."""


class ScoreRequest(PairRequest, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The body of ``POST /score``: one text against one or several, or pair by pair."""

    text_1: str | list[str]
    text_2: str | list[str]

    @property
    def sequences(self) -> int:
        """How many it opens at once."""
        return min(sum(map(_count, (self.text_1, self.text_2))), MAX_AT_ONCE)


class RankedDocument(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    text: str


class RerankRequest(PairRequest, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The body of ``POST /rerank``."""

    query: str
    documents: list[str | RankedDocument]
    top_n: int | None = None
    """How many of the best are answered; 0, or nothing, means all."""
    return_documents: bool | None = None
    """Whether results have the documents' texts; the default is true."""

    @property
    def texts(self) -> list[str]:
        return [each if isinstance(each, str) else each.text for each in self.documents]

    @property
    def sequences(self) -> int:
        return min(1 + len(self.documents), MAX_AT_ONCE)


class PoolingRequest(Ranked, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The body of ``POST /pooling``."""

    input: Prompt
    encoding_format: Literal["float", "base64"] | None = None
    normalize: bool | None = None

    @property
    def sequences(self) -> int:
        return min(count_prompts(self.input), MAX_AT_ONCE)


class ClassifyRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The body of ``POST /classify``: texts, or the messages of a chat."""

    model: str
    input: Prompt | None = None
    messages: list[Message] | None = None
    user: str | None = None
    safety_identifier: str | None = None
    use_activation: bool | None = None
    """Whether values are what the model's labels make of logits; the default is true."""
    priority: int | None = None
    cache_salt: str | None = None
    add_special_tokens: bool | None = None

    # Of chats.
    add_generation_prompt: bool | None = None
    """The default is false: the chat is judged as it ends."""
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, object] | None = None

    @property
    def sequences(self) -> int:
        """How many it opens at once."""
        return 1 if self.input is None else min(count_prompts(self.input), MAX_AT_ONCE)


class RankingUsage(msgspec.Struct, frozen=True):
    prompt_tokens: int
    total_tokens: int


class Classified(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    label: str
    """The likeliest."""
    probs: list[float]
    """The value of each label."""
    num_classes: int


class ClassificationUsage(msgspec.Struct, frozen=True, kw_only=True):
    prompt_tokens: int
    total_tokens: int
    completion_tokens: int = 0


class Classifications(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["list"] = "list"
    created: int
    model: str
    data: list[Classified]
    usage: ClassificationUsage


class Score(msgspec.Struct, frozen=True, kw_only=True):
    object: Literal["score"] = "score"
    index: int
    score: float


class Scores(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["list"] = "list"
    created: int
    model: str
    data: list[Score]
    usage: RankingUsage


class RerankResult(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    """The document's place in the request."""
    document: RankedDocument | UnsetType = UNSET
    relevance_score: float


class Reranking(msgspec.Struct, frozen=True, kw_only=True):
    """The documents, the best first."""

    id: str
    model: str
    results: list[RerankResult]
    usage: RankingUsage


class PooledVector(msgspec.Struct, frozen=True, kw_only=True):
    object: Literal["pooling"] = "pooling"
    index: int
    data: list[float] | str


class Pooled(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["list"] = "list"
    created: int
    model: str
    data: list[PooledVector]
    usage: RankingUsage


def _count(texts: str | list[str]) -> int:
    return 1 if isinstance(texts, str) else len(texts)
