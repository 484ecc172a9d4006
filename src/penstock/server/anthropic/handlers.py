"""The handlers of the dialect, and its endpoints."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from penstock.server.anthropic import errors
from penstock.server.anthropic.api import MessageJob, counted
from penstock.server.anthropic.field_table import rules_of
from penstock.server.anthropic.input import NAMES, as_chat
from penstock.server.anthropic.paths import COUNT, MESSAGES
from penstock.server.anthropic.protocol import (
    Count,
    CountRequest,
    ErrorMessage,
    MessageAnswer,
    MessageEvent,
    MessageRequest,
)
from penstock.server.intake import Intake
from penstock.server.openai.body import DialectDecoder
from penstock.server.openai.key_query import PromptReader, Prompts
from penstock.server.openai.prepare import chat_tokens
from penstock.server.openai.template_reads import TemplateReads
from penstock.server.openapi import Endpoint
from penstock.server.serving import Serving
from penstock.server.sse import EventStream, unless_ended


class MessageHandlers:
    """The handlers; ``model`` is used where a body names none, ``reads`` are the variables that
    chat templates read, and prompts are kept on disk where the engine ``keeps`` some."""

    def __init__(
        self, intake: Intake, model: str, reads: TemplateReads, keeps: bool = False
    ) -> None:
        self._intake = intake
        self._messages = DialectDecoder(MessageRequest, rules_of(MESSAGES), model, reads, keeps)
        self._counts = DialectDecoder(CountRequest, rules_of(COUNT), model, reads)
        self.prompt_reader = PromptReader(self._messages, _prompts)

    async def messages(self, request: Request) -> Response | EventStream:
        return await self._intake.answered(request, self._messages, MessageJob.prepare, errors.body)

    async def count_tokens(self, request: Request) -> Response:
        body = await self._intake.decoded(request, self._counts)
        self._intake.check_model(body.model)
        work = counted(body, self._intake.serving_to(request))
        count = await unless_ended(request, request.receive, work)
        return Response(msgspec.json.encode(count), media_type="application/json")

    def endpoints(self) -> list[Endpoint]:
        return [
            Endpoint(
                "POST",
                MESSAGES,
                self.messages,
                "Answer messages, as Anthropic's API does.",
                MessageAnswer,
                MessageRequest,
                MessageEvent,
                works=True,
                rules=rules_of(MESSAGES),
                error=ErrorMessage,
                error_body=errors.body,
            ),
            Endpoint(
                "POST",
                COUNT,
                self.count_tokens,
                "The number of tokens of such messages.",
                Count,
                CountRequest,
                rules=rules_of(COUNT),
                error=ErrorMessage,
                error_body=errors.body,
            ),
        ]


async def _prompts(request: MessageRequest, serving: Serving) -> Prompts:
    tokens = await chat_tokens(as_chat(request), serving, NAMES)
    return Prompts([tokens], request.cache_salt, request.model)
