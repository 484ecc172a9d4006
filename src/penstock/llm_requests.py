"""Requests to the engine, made of what a caller of ``LLM`` gives."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from penstock.errors import RequestError
from penstock.interface.messages import EngineRequest
from penstock.interface.request_checks import truncated
from penstock.llm_inputs import Params, Prompt, check_priority, listed, token_ids_of
from penstock.pooling.params import PoolingParams
from penstock.resolved_config import ResolvedConfig
from penstock.sampling.params import SamplingParams
from penstock.tokenizer import Tokenizer

Made = list[tuple[EngineRequest, str | None]]
"""Requests, each with its prompt's text where it was given as one."""


class RequestMaker:
    """Tokenizes prompts, fills in the model's own options, and numbers the requests.

    ``tokenizer`` returns the model's, and is called for prompts that are texts alone: a model may
    have none. Safe to share between threads.
    """

    def __init__(self, config: ResolvedConfig, tokenizer: Callable[[], Tokenizer]) -> None:
        self._config = config
        self._tokenizer = tokenizer
        self._ids = itertools.count()

    def of_outputs(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: Params,
        priority: int,
        adapters: Sequence[str] = (),
    ) -> Made:
        """One request for each prompt. ``adapters``: the digest of each one's adapter, where any
        has one. Raises RequestError."""
        each_prompt = listed(prompts)
        check_priority(priority)
        several: Any = params if isinstance(params, Sequence) else [params] * len(each_prompt)
        each: list[Any] = list(several)
        for one in each:
            if params is not None and not isinstance(one, SamplingParams):
                raise RequestError(
                    f"params must be SamplingParams, or one for each prompt, not {one!r:.80}",
                    "params",
                )
        if len(each) != len(each_prompt):
            raise RequestError(
                f"{len(each_prompt)} prompts, but {len(each)} sampling params", "params"
            )
        adapters = adapters or [""] * len(each_prompt)
        return [
            self._of_output(prompt, chosen, priority, adapter)
            for prompt, chosen, adapter in zip(each_prompt, each, adapters, strict=True)
        ]

    def of_embeddings(
        self,
        prompts: Prompt | Sequence[Prompt],
        pooling: PoolingParams | None,
        priority: int,
        adapters: Sequence[str] = (),
    ) -> Made:
        """One request for each prompt to embed, as :meth:`of_outputs`. Raises RequestError."""
        pooling = PoolingParams() if pooling is None else pooling
        if not isinstance(pooling, PoolingParams):
            raise RequestError(
                f"pooling must be PoolingParams, not {type(pooling).__name__}", "pooling"
            )
        check_priority(priority)
        made: Made = []
        each_prompt = listed(prompts)
        adapters = adapters or [""] * len(each_prompt)
        for prompt, adapter in zip(each_prompt, adapters, strict=True):
            text, token_ids = self._tokens(prompt)
            request = EngineRequest(
                request_id=self._next_id(),
                prompt_token_ids=token_ids,
                pooling=pooling,
                priority=priority,
                adapter=adapter,
            )
            made.append((request, text))
        return made

    def _of_output(
        self, prompt: Prompt, chosen: SamplingParams | None, priority: int, adapter: str
    ) -> tuple[EngineRequest, str | None]:
        lengths = self._config.lengths
        truncates = chosen is not None and chosen.truncate_prompt_tokens is not None
        text, token_ids = self._tokens(prompt, any_length=truncates)
        if chosen is None:
            chosen = self._config.sampling_defaults.params(lengths.room(len(token_ids)))
        elif truncates:
            chosen.validate()
            token_ids = truncated(token_ids, chosen, lengths)
        request = EngineRequest(
            request_id=self._next_id(),
            prompt_token_ids=token_ids,
            params=chosen,
            priority=priority,
            adapter=adapter,
        )
        return request, text

    def _next_id(self) -> str:
        return f"llm-{next(self._ids)}"

    def _tokens(self, prompt: Prompt, any_length: bool = False) -> tuple[str | None, list[int]]:
        """The prompt's text, where it is one, and its tokens. A text that is sure not to fit into
        the context is refused before it is tokenized, unless it may have ``any_length``."""
        if isinstance(prompt, str):
            return prompt, self._encode(prompt, any_length)
        if not isinstance(prompt, dict):
            raise RequestError(
                "a prompt is text, or a dict with 'prompt' or 'prompt_token_ids', "
                f"not {type(prompt).__name__}",
                "prompt",
            )
        token_ids: Any = prompt.get("prompt_token_ids")
        if token_ids is not None:
            return None, token_ids_of(token_ids)
        text = prompt.get("prompt")
        if not isinstance(text, str):
            raise RequestError("a prompt dict has 'prompt' or 'prompt_token_ids'", "prompt")
        return text, self._encode(text, any_length)

    def _encode(self, text: str, any_length: bool) -> list[int]:
        tokenizer = self._tokenizer()
        if not any_length:
            tokenizer.check_length(text, self._config.lengths.longest_input)
        return tokenizer.encode(text)
