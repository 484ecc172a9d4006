"""The handlers of the dialect, and its endpoints."""

from __future__ import annotations

import time
from typing import Any, Final, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from penstock.parsing.styles import Styles
from penstock.server.fields.check import Advice
from penstock.server.fields.rules import Rule
from penstock.server.intake import Intake
from penstock.server.of_model import OfModel
from penstock.server.ollama import errors
from penstock.server.ollama import input as names
from penstock.server.ollama.api import ChatJob, GenerateJob
from penstock.server.ollama.embed import embedded, embedded_one
from penstock.server.ollama.errors import ErrorLine
from penstock.server.ollama.field_table import rules_of
from penstock.server.ollama.input import is_continued, of_chat, of_prompt, of_raw
from penstock.server.ollama.models import (
    LoadedModel,
    LoadedModels,
    LocalModel,
    LocalModels,
    ModelShown,
    ModelStatus,
    OllamaVersion,
    ShowRequest,
)
from penstock.server.ollama.paths import CHAT, EMBED, GENERATE, OLD_EMBED, SHOW
from penstock.server.ollama.protocol import (
    ChatLine,
    Embedded,
    EmbedRequest,
    GenerateLine,
    GenerateRequest,
    OldEmbedded,
    OldEmbedRequest,
    OllamaChatRequest,
)
from penstock.server.ollama.reading import read_undeclared
from penstock.server.openai.body import DialectDecoder
from penstock.server.openai.key_query import PromptReader, PromptReaders, Prompts, of_completion
from penstock.server.openai.prepare import chat_tokens
from penstock.server.openai.template_reads import TemplateReads
from penstock.server.openapi import Endpoint
from penstock.server.serving import Serving
from penstock.server.sse import LINES, EventStream
from penstock.server.supervisor import Supervisor

Body = TypeVar("Body", bound=msgspec.Struct)

VERSION: Final = "0.12.0"
"""The version of Ollama whose API this is, which clients ask for before they use what is new."""
_LATEST: Final = ":latest"


class _Decoder(DialectDecoder[Body]):
    """Decodes bodies whose model may have the tag that the dialect means where there is none."""

    def __init__(self, kind: type[Body], path: str, model: str, reads: TemplateReads) -> None:
        super().__init__(kind, rules_of(path), model, reads)
        self._served = model

    def _heed(self, advice: list[Advice], given: dict[str, Any]) -> list[Rule]:
        name = given.get("model")
        if isinstance(name, str) and name != self._served:
            given["model"] = name.removesuffix(_LATEST)
        return super()._heed(advice, given)


class OllamaHandlers:
    """The handlers, over one engine; ``reads`` are the variables that chat templates read."""

    def __init__(
        self, intake: Intake, engine: Supervisor, styles: Styles, reads: TemplateReads
    ) -> None:
        self._intake = intake
        model = engine.model.served_model_name
        template = engine.tokenizer.settings.chat_templates.get("default", "")
        loaded = time.time()
        self._status = OfModel(engine, lambda facts: ModelStatus(facts, template, styles, loaded))
        self._generating = _Decoder(GenerateRequest, GENERATE, model, reads)
        self._chats = _Decoder(OllamaChatRequest, CHAT, model, reads)
        self._embeds = _Decoder(EmbedRequest, EMBED, model, reads)
        self._old_embeds = _Decoder(OldEmbedRequest, OLD_EMBED, model, reads)
        self._shows = _Decoder(ShowRequest, SHOW, model, reads)
        self.prompt_readers: PromptReaders = {
            GENERATE: PromptReader(self._generating, _prompts_of_prompt),
            CHAT: PromptReader(self._chats, _prompts_of_chat),
        }

    async def ollama_generate(self, request: Request) -> Response | EventStream:
        return await self._intake.answered(
            request, self._generating, GenerateJob.prepare, errors.body, LINES, read_undeclared
        )

    async def ollama_chat(self, request: Request) -> Response | EventStream:
        return await self._intake.answered(
            request, self._chats, ChatJob.prepare, errors.body, LINES, read_undeclared
        )

    async def ollama_embed(self, request: Request) -> Response:
        return await self._intake.answered_whole(request, self._embeds, embedded, read_undeclared)

    async def ollama_old_embed(self, request: Request) -> Response:
        return await self._intake.answered_whole(
            request, self._old_embeds, embedded_one, read_undeclared
        )

    async def ollama_tags(self, request: Request) -> Response:
        return _json(msgspec.json.encode(LocalModels([self.local])))

    async def ollama_ps(self, request: Request) -> Response:
        return _json(msgspec.json.encode(LoadedModels([self.loaded])))

    @property
    def local(self) -> LocalModel:
        """The model, as it is listed."""
        return self._status.get().local()

    @property
    def loaded(self) -> LoadedModel:
        """The model, as it is listed among those that are loaded."""
        return self._status.get().loaded()

    async def ollama_show(self, request: Request) -> Response:
        body = await self._intake.decoded(request, self._shows, read_undeclared)
        self._intake.check_model(body.model)
        return _json(msgspec.json.encode(self._status.get().shown()))

    async def ollama_version(self, request: Request) -> Response:
        return _json(msgspec.json.encode(OllamaVersion(VERSION)))

    def endpoints(self) -> list[Endpoint]:
        return [
            Endpoint(
                "POST",
                GENERATE,
                self.ollama_generate,
                "Answer or continue a prompt, as Ollama does.",
                GenerateLine,
                GenerateRequest,
                works=True,
                rules=rules_of(GENERATE),
                stream=GenerateLine,
                error=ErrorLine,
                error_body=errors.body,
            ),
            Endpoint(
                "POST",
                CHAT,
                self.ollama_chat,
                "Answer the messages of a chat, as Ollama does.",
                ChatLine,
                OllamaChatRequest,
                works=True,
                rules=rules_of(CHAT),
                stream=ChatLine,
                error=ErrorLine,
                error_body=errors.body,
            ),
            Endpoint(
                "POST",
                EMBED,
                self.ollama_embed,
                "Embed texts, as Ollama does.",
                Embedded,
                EmbedRequest,
                works=True,
                rules=rules_of(EMBED),
                error=ErrorLine,
                error_body=errors.body,
            ),
            Endpoint(
                "POST",
                OLD_EMBED,
                self.ollama_old_embed,
                "Embed one text, as older clients of Ollama ask for it.",
                OldEmbedded,
                OldEmbedRequest,
                works=True,
                rules=rules_of(OLD_EMBED),
                error=ErrorLine,
                error_body=errors.body,
            ),
            Endpoint(
                "POST",
                SHOW,
                self.ollama_show,
                "What the model is, as Ollama tells it.",
                ModelShown,
                ShowRequest,
                rules=rules_of(SHOW),
                error=ErrorLine,
                error_body=errors.body,
            ),
            Endpoint(
                "GET",
                "/api/tags",
                self.ollama_tags,
                "The model, for Ollama's clients.",
                LocalModels,
            ),
            Endpoint(
                "GET",
                "/api/ps",
                self.ollama_ps,
                "The model that is loaded, for these.",
                LoadedModels,
            ),
            Endpoint(
                "GET",
                "/api/version",
                self.ollama_version,
                "The version of Ollama's API that this is.",
                OllamaVersion,
            ),
        ]


async def _prompts_of_prompt(request: GenerateRequest, serving: Serving) -> Prompts:
    if is_continued(request):
        return await of_completion(of_raw(request), serving)
    tokens = await chat_tokens(of_prompt(request), serving, names.GENERATE)
    return Prompts([tokens], request.cache_salt, request.model)


async def _prompts_of_chat(request: OllamaChatRequest, serving: Serving) -> Prompts:
    tokens = await chat_tokens(of_chat(request), serving, names.CHAT)
    return Prompts([tokens], request.cache_salt, request.model)


def _json(data: bytes) -> Response:
    return Response(data, media_type="application/json")
