"""Worker processes are shared by callers: every path to them says who asks."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from penstock.length_limits import LengthLimits
from penstock.parsing.styles import Styles
from penstock.sampling.defaults import SamplingDefaults
from penstock.sandbox.grammar_check import GrammarCheck
from penstock.sandbox.jobs import Answer, Job
from penstock.sandbox.pool import WorkerPool
from penstock.server.callers import Caller
from penstock.server.meter import Meter
from penstock.server.openai.completions import CompletionJob
from penstock.server.openai.embeddings import EmbeddingJob, EmbeddingRequest
from penstock.server.openai.prepare import prepare_chat
from penstock.server.openai.protocol import ChatRequest, CompletionRequest
from penstock.server.openai.tokenizing import TokenizeRequest, tokenized
from penstock.server.serving import Serving


class Reached(Exception):
    """An engine, or a pool, has been asked on behalf of this tenant."""


class Engine:
    def __init__(self, texts: bool = True) -> None:
        self.texts = texts
        self.model = SimpleNamespace(
            labels=None,
            lengths=LengthLimits(99),
            vocab_size=300,
            served_model_name="fake",
            sampling_defaults=SamplingDefaults(),
        )
        self.tokenizer = SimpleNamespace(settings=SimpleNamespace(chat_templates={}))

    @property
    def inputs(self) -> Engine:
        return self

    async def encode(self, texts: Any, *_: Any, tenant: str = "", **__: Any) -> list[list[int]]:
        if self.texts:
            raise Reached(tenant)
        return [[1] for _ in texts]

    async def encode_chat(self, *_: Any, tenant: str = "", **__: Any) -> list[int]:
        raise Reached(tenant)


class Pool(WorkerPool):
    async def run(self, job: Job, tenant: str = "") -> Answer:
        raise Reached(tenant)


def read(kind: Any, **fields: Any) -> Any:
    return msgspec.convert({"model": "fake", **fields}, kind)


MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize("way", ["completion", "grammar", "chat", "embedding", "text", "messages"])
def test_the_caller_is_named(way: str) -> None:
    async def main() -> None:
        engine = Engine(texts=way != "grammar")
        serving = Serving(cast(Any, engine), Styles(), GrammarCheck(Pool()), Caller("a"))
        meter = cast(Meter, None)
        works: dict[str, Any] = {
            "completion": lambda: CompletionJob.prepare(
                read(CompletionRequest, prompt="hi"), serving, meter
            ),
            "grammar": lambda: CompletionJob.prepare(
                read(CompletionRequest, prompt="hi", max_tokens=3, guided_regex="a+"),
                serving,
                meter,
            ),
            "chat": lambda: prepare_chat(read(ChatRequest, messages=MESSAGES), serving, meter),
            "embedding": lambda: EmbeddingJob.prepare(
                read(EmbeddingRequest, input="hi"), serving, meter
            ),
            "text": lambda: tokenized(read(TokenizeRequest, prompt="hi"), serving),
            "messages": lambda: tokenized(read(TokenizeRequest, messages=MESSAGES), serving),
        }
        work: Coroutine[Any, Any, object] = works[way]()
        with pytest.raises(Reached, match=r"^a$"):
            await work

    asyncio.run(main())
