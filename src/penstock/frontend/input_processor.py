"""Turns the texts and chats of requests into token ids."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from penstock.engine.ipc.wire import ModelFacts
from penstock.freed_memory import give_back
from penstock.sandbox.grammar_check import GrammarCheck
from penstock.sandbox.jobs import Tokenize, TokenizeChat, Tokens
from penstock.sandbox.pool import WorkerPool
from penstock.tokenizer import Tokenizer, has_tokenizer, load_tokenizer
from penstock.tokenizer.tokenizer import check_unicode

THREAD_PROMPT_CHARS = 4096
"""Longer texts are tokenized by a worker process: at about 1 MB/s, shorter ones hold the event loop
for less than 5 ms."""


class InputProcessor:
    """A model's tokenizer, and the worker processes that do its slow or risky work.

    Short texts are tokenized in this process. Long ones, chat templates and checks of grammars
    are left to workers. It may serve one engine after another. Belongs to one event loop.

    ``chat_template`` takes the place of the model's own, if it is not empty.
    """

    def __init__(self, chat_template: str = "") -> None:
        self._chat_template = chat_template
        self.workers = WorkerPool()
        self.grammars = GrammarCheck(self.workers)
        self._path = ""
        self._longest = 0
        self._loading: asyncio.Task[Tokenizer] | None = None
        self._expected = False
        self._dropped: asyncio.Task[Tokenizer] | None = None

    def expect(self, source: str) -> None:
        """Begin to load the tokenizer that the engine will probably name, while it starts.

        ``source`` is what the user named. Nothing is done unless it is a file or folder with a
        tokenizer; of another, :meth:`load` makes nothing of what was begun.
        """
        path = Path(source)
        if source and path.exists() and has_tokenizer(path):
            self.load(str(path))
            self._expected = True

    def load(self, path: str) -> asyncio.Task[Tokenizer]:
        """Begin to load the tokenizer of this folder or file, unless that was done before."""
        if self._loading is not None and self._expected and path != self._path:
            self._dropped, self._loading = self._loading, None
        self._expected = False
        if self._loading is None:
            self._path = path
            loading = asyncio.to_thread(_load, path, self._chat_template)
            self._loading = asyncio.get_running_loop().create_task(loading)
        return self._loading

    async def serve(self, model: ModelFacts) -> Tokenizer:
        """Process texts for this model from now on; returns its tokenizer. Raises
        TokenizerError."""
        self.load(model.tokenizer_path)
        assert self._loading is not None
        self._longest = model.lengths.longest_input
        tokenizer = await self._loading
        tokenizer.check_model(model.vocab_size)
        return tokenizer

    @property
    def tokenizer(self) -> Tokenizer:
        assert self._loading is not None, "load() comes first"
        return self._loading.result()

    def warm(self) -> None:
        """Start a worker now: the first chat need not wait for it."""
        self.workers.warm(self._path)

    async def encode(
        self,
        texts: Sequence[str],
        *,
        add_special_tokens: bool = True,
        parse_special: bool = True,
        params: Sequence[str] = (),
        any_length: bool = False,
        tenant: str = "",
    ) -> list[list[int]]:
        """The token ids of each text.

        ``params`` are the fields of the request that hold the texts. ``any_length``: they may be
        longer than the context, since the caller cuts them. ``tenant`` is whose work it
        is: tenants share the workers fairly. Raises RequestError for a text that is sure not to fit
        in the context, before any is tokenized, or that takes too much, and UnavailableError if
        workers are lost.
        """
        encode = self.tokenizer.encode
        if sum(map(len, texts)) < THREAD_PROMPT_CHARS:
            return [encode(text, add_special_tokens, parse_special) for text in texts]
        named = params or ["prompt"] * len(texts)
        for text, param in zip(texts, named, strict=True):
            if not any_length:
                self.tokenizer.check_length(text, self._longest, param)
            check_unicode(text)
        job = Tokenize(
            param=max(zip(texts, named, strict=True), key=lambda each: len(each[0]))[1],
            tokenizer=self._path,
            texts=list(texts),
            add_special_tokens=add_special_tokens,
            parse_special=parse_special,
        )
        answer = await self.workers.run(job, tenant)
        assert isinstance(answer, Tokens)
        return answer.lists()

    async def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        chat_template_kwargs: Mapping[str, Any] | None = None,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        add_special_tokens: bool = False,
        any_length: bool = False,
        chat_template: str = "",
        tenant: str = "",
    ) -> list[int]:
        """The token ids of a chat in the model's template, by a worker process.

        Names of special tokens in messages are text. ``any_length``: it may be longer than the
        context, since the caller cuts it. ``chat_template`` takes the place of the model's, if it
        is not empty. Raises RequestError.
        """
        job = TokenizeChat.of(
            self._path,
            messages,
            tools,
            chat_template_kwargs or {},
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            add_special_tokens=add_special_tokens,
            max_tokens=None if any_length else self._longest,
            chat_template=chat_template or self._chat_template,
        )
        answer = await self.workers.run(job, tenant)
        assert isinstance(answer, Tokens)
        return answer.lists()[0]

    async def aclose(self) -> None:
        """End the workers. Safe to repeat."""
        await self.workers.aclose()
        begun = [task for task in (self._loading, self._dropped) if task is not None]
        await asyncio.gather(*begun, return_exceptions=True)


def _load(path: str, chat_template: str) -> Tokenizer:
    tokenizer = load_tokenizer(path, check_templates=not chat_template)
    if chat_template:
        tokenizer = tokenizer.with_chat_template(chat_template)
    _ = tokenizer.length_bound  # found out now, not when a long text holds the event loop
    give_back()
    return tokenizer
