"""``POST /admin/cache/keys``: by which keys the cache would be asked for a request's prompt."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from penstock.engine.prompt_keys import KEY_TOKENS, prompt_keys
from penstock.server.bodies import Bodies
from penstock.server.body_decoder import BodyDecoder
from penstock.server.errors import ApiError
from penstock.server.open_requests import OpenRequest
from penstock.server.openai.functions import is_old, with_tools
from penstock.server.openai.names import CHAT, FUNCTIONS, RESPONSES
from penstock.server.openai.prepare import chat_tokens
from penstock.server.openai.prompts import completion_tokens
from penstock.server.openai.protocol import ChatRequest, CompletionRequest
from penstock.server.openai.responses.input import as_chat
from penstock.server.openai.responses.protocol import ResponseRequest
from penstock.server.openapi import Endpoint
from penstock.server.serving import Serving
from penstock.server.sse import unless_ended

Body = TypeVar("Body", bound=msgspec.Struct)


class CacheKeys(msgspec.Struct, frozen=True, kw_only=True):
    """The prompt of a request, as the cache knows it."""

    block_size: int
    """Tokens of a block."""
    prompt_tokens: int
    """Tokens of all its prompts."""
    keys: bytes
    """Keys of the full blocks of its longest prompt, 16 bytes each, one behind the other, in
    base64; as in the events of ``/admin/cache/events``."""


@dataclass(frozen=True)
class Prompts:
    """What the cache is asked for by one request."""

    token_ids: list[list[int]]
    salt: str | None
    model: str
    """As the body names it: the model, or an adapter."""


@dataclass(frozen=True)
class PromptReader(Generic[Body]):
    """Reads the prompts of the bodies of one endpoint, and checks nothing else of them."""

    decoder: BodyDecoder[Body]
    prompts: Callable[[Body, Serving], Coroutine[Any, Any, Prompts]]

    async def read(self, request: Request, bodies: Bodies, serving: Serving) -> Prompts:
        """Raises ApiError or RequestError naming the field at fault."""
        return await self.prompts((await bodies.decoded(request, self.decoder)).request, serving)


PromptReaders = Mapping[str, PromptReader[Any]]
"""Readers by the paths of their endpoints."""


class PromptKeys:
    """The handler. It reads a body as the endpoint that ``path`` names does, as far as the prompt
    depends on it, so a router needs neither tokenizer nor template, and no rule of a dialect."""

    def __init__(
        self,
        serving: Serving,
        bodies: Bodies,
        adapter: Callable[[str], str],
        readers: PromptReaders,
    ) -> None:
        """``adapter`` returns the digest of the adapter that a model names."""
        self._adapter = adapter
        self._serving = serving
        self._bodies = bodies
        self._readers = readers

    def endpoint(self) -> Endpoint:
        return Endpoint(
            "POST",
            "/admin/cache/keys",
            self.cache_keys,
            "The keys of the blocks of a request's prompt.",
            CacheKeys,
            ChatRequest,
            query={"path": {"enum": list(self._readers)}},
            access="admin",
        )

    async def cache_keys(self, request: Request) -> Response:
        """The body is a request to ``path``; nothing is generated."""
        reader = self._readers.get(request.query_params.get("path", ""))
        if reader is None:
            why = f"path must be one of {', '.join(self._readers)}"
            raise ApiError(400, why, param="path")
        caller = OpenRequest.of(request.scope).caller
        serving = replace(self._serving, caller=caller)
        reading = reader.read(request, self._bodies, serving)
        prompts = await unless_ended(request, request.receive, reading)
        longest = max(prompts.token_ids, key=len)
        keys = CacheKeys(
            block_size=KEY_TOKENS,
            prompt_tokens=sum(map(len, prompts.token_ids)),
            keys=b"".join(prompt_keys(longest, prompts.salt or "", self._adapter(prompts.model))),
        )
        return Response(msgspec.json.encode(keys), media_type="application/json")


async def of_completion(request: CompletionRequest, serving: Serving) -> Prompts:
    tokens = await completion_tokens(request, serving)
    return Prompts(tokens, request.cache_salt, request.model)


async def of_chat(request: ChatRequest, serving: Serving) -> Prompts:
    names = FUNCTIONS if is_old(request) else CHAT
    tokens = await chat_tokens(with_tools(request), serving, names)
    return Prompts([tokens], request.cache_salt, request.model)


async def of_response(request: ResponseRequest, serving: Serving) -> Prompts:
    tokens = await chat_tokens(as_chat(request), serving, RESPONSES)
    return Prompts([tokens], request.cache_salt, request.model)
