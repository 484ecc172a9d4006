"""The handler of new responses, and its endpoint."""

from __future__ import annotations

from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from penstock.server.intake import Intake
from penstock.server.openai.body import DialectDecoder
from penstock.server.openai.field_table import rules_of
from penstock.server.openai.paths import RESPONSES
from penstock.server.openai.responses import protocol
from penstock.server.openai.responses.api import ResponseJob
from penstock.server.openai.responses.protocol import ResponseEvent, ResponseRequest
from penstock.server.openai.responses.stored import StoredResponses
from penstock.server.openai.template_reads import TemplateReads
from penstock.server.openapi import Endpoint
from penstock.server.sse import EventStream


class ResponseHandlers:
    """The handler; ``model`` is used where a body names none, ``reads`` are the variables that
    chat templates read, responses are kept in ``stored``, and prompts on disk where the engine
    ``keeps`` some."""

    def __init__(
        self,
        intake: Intake,
        model: str,
        reads: TemplateReads,
        stored: StoredResponses,
        keeps: bool = False,
    ) -> None:
        self._intake = intake
        self._stored = stored
        self.decoder = DialectDecoder(ResponseRequest, rules_of(RESPONSES), model, reads, keeps)

    async def respond(self, request: Request) -> Response | EventStream:
        prepare = partial(ResponseJob.prepare, self._stored)
        return await self._intake.answered(request, self.decoder, prepare)

    def endpoints(self) -> list[Endpoint]:
        return [
            Endpoint(
                "POST",
                RESPONSES,
                self.respond,
                "Answer a text or messages.",
                protocol.Response,
                ResponseRequest,
                ResponseEvent,
                works=True,
                rules=rules_of(RESPONSES),
            )
        ]
