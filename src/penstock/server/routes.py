"""The routes of the server: the handler of each, and its entry in the OpenAPI document."""

from __future__ import annotations

from penstock.server.engine_events import EngineSnapshot
from penstock.server.handlers import Handlers
from penstock.server.keys import WORKLOAD
from penstock.server.kserve.endpoints import kserve_endpoints
from penstock.server.openai.answer_structs import Chat, ChatChunk, Completion
from penstock.server.openai.embeddings import EmbeddingRequest, Embeddings
from penstock.server.openai.field_table import rules_of
from penstock.server.openai.paths import CHAT, COMPLETIONS, EMBEDDINGS, TOKENIZE
from penstock.server.openai.protocol import ChatRequest, CompletionRequest
from penstock.server.openai.tokenizing import (
    DetokenizeRequest,
    Text,
    TokenizeRequest,
    Tokens,
)
from penstock.server.openapi import Endpoint
from penstock.server.status_structs import Alive, ModelCard, ModelList, OpenApi, Ready, Version
from penstock.server.workload import MOST_SECONDS
from penstock.workload.report import ObservedWorkload
from penstock.workload.trace_line import TraceLine


def endpoints(handlers: Handlers) -> list[Endpoint]:
    """Return all endpoints except the administrator's."""
    return [
        Endpoint(
            "POST",
            COMPLETIONS,
            handlers.completions,
            "Continue a text.",
            Completion,
            CompletionRequest,
            Completion,
            works=True,
            rules=rules_of(COMPLETIONS),
        ),
        Endpoint(
            "POST",
            CHAT,
            handlers.chat,
            "Answer the messages of a chat.",
            Chat,
            ChatRequest,
            ChatChunk,
            works=True,
            rules=rules_of(CHAT),
        ),
        *handlers.responses.endpoints(),
        Endpoint(
            "POST",
            EMBEDDINGS,
            handlers.embeddings,
            "Embed texts: the model's hidden states, pooled.",
            Embeddings,
            EmbeddingRequest,
            works=True,
            rules=rules_of(EMBEDDINGS),
        ),
        Endpoint(
            "POST",
            TOKENIZE,
            handlers.tokenize,
            "The tokens of a text or of a chat's messages.",
            Tokens,
            TokenizeRequest,
            rules=rules_of(TOKENIZE),
        ),
        Endpoint(
            "POST",
            "/detokenize",
            handlers.detokenize,
            "The text of tokens.",
            Text,
            DetokenizeRequest,
        ),
        *handlers.ranking.endpoints(),
        *handlers.kept_endpoints(),
        *handlers.messages.endpoints(),
        *handlers.ollama.endpoints(),
        *kserve_endpoints(handlers.kserve),
        *handlers.llama.endpoints(),
        *handlers.tgi.endpoints(),
        Endpoint("GET", "/v1/models", handlers.models, "The model that is served.", ModelList),
        Endpoint("GET", "/v1/models/{model:path}", handlers.model, "The same by name.", ModelCard),
        Endpoint("GET", "/health", handlers.health, "Whether it lives.", Alive, access="public"),
        Endpoint("GET", "/ready", handlers.ready, "Whether it serves.", Ready, access="public"),
        Endpoint("GET", "/metrics", handlers.metrics_text, "Metrics for Prometheus.", None),
        Endpoint(
            "GET",
            "/engine/events",
            handlers.engine_events,
            "What the engine does, several times a second.",
            None,
            event=EngineSnapshot,
        ),
        Endpoint(
            "GET",
            WORKLOAD,
            handlers.workload.report,
            "The requests that were served: figures or, with format=jsonl, a trace without text.",
            ObservedWorkload,
            lines=TraceLine,
            query={
                "format": {"enum": ["json", "jsonl"]},
                "since": {"type": "number", "minimum": 0, "maximum": MOST_SECONDS},
            },
            access="operator",
        ),
        Endpoint("GET", "/version", handlers.version, "The server's version.", Version),
        Endpoint("GET", "/openapi.json", handlers.openapi_json, "This document.", OpenApi),
    ]
