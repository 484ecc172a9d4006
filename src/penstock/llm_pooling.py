"""The calls of ``LLM`` that generate nothing: embedding, classifying, scoring."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from penstock.engine.shared_core import SharedCore
from penstock.errors import RequestError
from penstock.interface.messages import SequenceUpdate
from penstock.llm_inputs import Prompt, progress_bar
from penstock.llm_requests import Made, RequestMaker
from penstock.pooling.labels import Labels
from penstock.pooling.output import (
    ClassificationOutput,
    EmbeddingOutput,
    ScoringOutput,
    embedding_output,
)
from penstock.pooling.params import PoolingParams
from penstock.pooling.similarity import cosine
from penstock.pooling.task_check import check_pairs, check_task
from penstock.tokenizer import Tokenizer
from penstock.tokenizer.pairs import check_instruction, pair_template, tokenize_pair

UseTqdm = bool | Callable[..., Any]
_CLASSIFY = PoolingParams(task="classify")


class LlmPooling:
    """Runs requests whose outputs are vectors. Safe to share between threads.

    ``labels`` are the model's, where it classifies; ``tokenizer`` returns its tokenizer.
    """

    def __init__(
        self,
        core: SharedCore,
        making: RequestMaker,
        labels: Labels | None,
        tokenizer: Callable[[], Tokenizer],
    ) -> None:
        self._core = core
        self._making = making
        self._labels = labels
        self._tokenizer = tokenizer

    def embed(
        self,
        prompts: Sequence[Prompt],
        pooling: PoolingParams | None,
        priority: int,
        adapters: Sequence[str],
        use_tqdm: UseTqdm,
    ) -> list[EmbeddingOutput]:
        """An embedding of each prompt. ``adapters``: the digest of each one's, where any has one.
        Raises RequestError."""
        made = self._making.of_embeddings(prompts, pooling, priority, adapters)
        ends = self._run(made, use_tqdm)
        return [
            embedding_output(request, text, end)
            for (request, text), end in zip(made, ends, strict=True)
        ]

    def classify(
        self,
        prompts: Sequence[Prompt],
        activated: bool,
        priority: int,
        adapters: Sequence[str],
        use_tqdm: UseTqdm,
    ) -> list[ClassificationOutput]:
        """A value of each label for each prompt. Raises RequestError."""
        check_task(_CLASSIFY, self._labels)
        assert self._labels is not None
        made = self._making.of_embeddings(prompts, _CLASSIFY, priority, adapters)
        outputs = []
        for (request, text), end in zip(made, self._run(made, use_tqdm), strict=True):
            logits = end.embedding
            probs = [] if logits is None else self._labels.values(logits, activated)
            outputs.append(
                ClassificationOutput(
                    request_id=request.request_id,
                    prompt=text,
                    prompt_token_ids=request.prompt_token_ids,
                    probs=probs,
                    label=self._labels.likeliest(probs) if probs else None,
                    num_cached_tokens=end.num_cached_tokens,
                    error=end.error,
                )
            )
        return outputs

    def score(
        self,
        first: Sequence[str],
        second: Sequence[str],
        instruction: str | None,
        activated: bool,
        priority: int,
        adapter: str,
        use_tqdm: UseTqdm,
    ) -> list[ScoringOutput]:
        """The score of each pair, of which ``first`` has one text for all or as many. Raises
        RequestError."""
        for texts, name in ((first, "queries"), (second, "documents")):
            if not all(isinstance(text, str) for text in texts):
                raise RequestError(f"{name} must be texts", name)
        if len(first) not in (1, len(second)):
            raise RequestError(
                f"there are {len(first)} queries and {len(second)} documents: give one query for "
                "all documents, or as many",
                "queries",
            )
        alone = len(first) == 1
        if self._labels is None:
            check_instruction(instruction, None)
            both: list[Prompt] = [*first, *second]
            vectors = self.embed(both, None, priority, [adapter] * len(both), use_tqdm)
            others = vectors[len(first) :]
            return [_cosine(vectors[0 if alone else i], each) for i, each in enumerate(others)]
        check_pairs(self._labels)
        tokenizer = self._tokenizer()
        template = pair_template(tokenizer, self._labels.names)
        prompts: list[Prompt] = [
            {"prompt_token_ids": tokenize_pair(tokenizer, template, *pair, instruction)}
            for pair in zip([*first] * len(second) if alone else first, second, strict=True)
        ]
        made = self._making.of_embeddings(prompts, _CLASSIFY, priority, [adapter] * len(prompts))
        ends = self._run(made, use_tqdm)
        return [
            ScoringOutput(self._labels.score(end.embedding, activated))
            if end.embedding is not None
            else ScoringOutput(float("nan"), end.error)
            for end in ends
        ]

    def _run(self, made: Made, use_tqdm: UseTqdm) -> list[SequenceUpdate]:
        """The last update of each request, in their order."""
        ids = [request.request_id for request, _ in made]
        inbox = self._core.submit([request for request, _ in made])
        ended: dict[str, SequenceUpdate] = {}
        try:
            with progress_bar(use_tqdm, len(ids)) as advance:
                while len(ended) < len(ids):
                    for update in self._core.next(inbox):
                        if update.finish_reason is not None:
                            ended[update.request_id] = update
                            advance()
        finally:
            self._core.leave(inbox)
        return [ended[request_id] for request_id in ids]


def _cosine(one: EmbeddingOutput, other: EmbeddingOutput) -> ScoringOutput:
    error = one.error or other.error
    if error is not None:
        return ScoringOutput(float("nan"), error)
    return ScoringOutput(cosine(one.embedding.tolist(), other.embedding.tolist()))
