"""``POST /admin/cache/keys``: by which keys the cache would be asked for a request's prompt."""

from __future__ import annotations

from dataclasses import replace

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from penstock.engine.prompt_keys import KEY_TOKENS, prompt_keys
from penstock.server.bodies import Bodies
from penstock.server.errors import ApiError
from penstock.server.open_requests import OpenRequest
from penstock.server.openai.body import DialectDecoder
from penstock.server.openai.completions import completion_tokens
from penstock.server.openai.functions import is_old, with_tools
from penstock.server.openai.names import CHAT, FUNCTIONS, RESPONSES
from penstock.server.openai.paths import CHAT as CHAT_PATH
from penstock.server.openai.paths import COMPLETIONS as COMPLETIONS_PATH
from penstock.server.openai.paths import RESPONSES as RESPONSES_PATH
from penstock.server.openai.prepare import chat_tokens
from penstock.server.openai.protocol import ChatRequest, CompletionRequest
from penstock.server.openai.responses.input import as_chat
from penstock.server.openai.responses.protocol import ResponseRequest
from penstock.server.openapi import Endpoint
from penstock.server.serving import Serving
from penstock.server.sse import unless_ended

PATHS = (COMPLETIONS_PATH, CHAT_PATH, RESPONSES_PATH)


class CacheKeys(msgspec.Struct, frozen=True, kw_only=True):
    """The prompt of a request, as the cache knows it."""

    block_size: int
    """Tokens of a block."""
    prompt_tokens: int
    """Tokens of all its prompts."""
    keys: bytes
    """Keys of the full blocks of its longest prompt, 16 bytes each, one behind the other, in
    base64; as in the events of ``/admin/cache/events``."""


class PromptKeys:
    """The handler. It reads a body as the endpoint that ``path`` names does, as far as the prompt
    depends on it, so a router needs neither tokenizer nor template, and no rule of a dialect."""

    def __init__(
        self,
        serving: Serving,
        bodies: Bodies,
        completions: DialectDecoder[CompletionRequest],
        chats: DialectDecoder[ChatRequest],
        responses: DialectDecoder[ResponseRequest],
    ) -> None:
        self._serving = serving
        self._bodies = bodies
        self._completions = completions
        self._chats = chats
        self._responses = responses

    def endpoint(self) -> Endpoint:
        return Endpoint(
            "POST",
            "/admin/cache/keys",
            self.cache_keys,
            "The keys of the blocks of a request's prompt.",
            CacheKeys,
            ChatRequest,
            query={"path": {"enum": list(PATHS)}},
            access="admin",
        )

    async def cache_keys(self, request: Request) -> Response:
        """The body is a request to ``path``; nothing is generated."""
        path = request.query_params.get("path", "")
        if path not in PATHS:
            raise ApiError(400, f"path must be one of {', '.join(PATHS)}", param="path")
        caller = OpenRequest.of(request.scope).caller
        serving = replace(self._serving, caller=caller)
        prompts, salt = await unless_ended(
            request, request.receive, self._prompts(request, path, serving)
        )
        longest = max(prompts, key=len)
        keys = CacheKeys(
            block_size=KEY_TOKENS,
            prompt_tokens=sum(map(len, prompts)),
            keys=b"".join(prompt_keys(longest, salt)),
        )
        return Response(msgspec.json.encode(keys), media_type="application/json")

    async def _prompts(
        self, request: Request, path: str, serving: Serving
    ) -> tuple[list[list[int]], str]:
        if path == COMPLETIONS_PATH:
            completion = (await self._bodies.decoded(request, self._completions)).request
            return await completion_tokens(completion, serving), completion.cache_salt or ""
        if path == RESPONSES_PATH:
            response = (await self._bodies.decoded(request, self._responses)).request
            tokens = await chat_tokens(as_chat(response), serving, RESPONSES)
            return [tokens], response.cache_salt or ""
        chat = (await self._bodies.decoded(request, self._chats)).request
        tokens = await chat_tokens(with_tools(chat), serving, FUNCTIONS if is_old(chat) else CHAT)
        return [tokens], chat.cache_salt or ""
