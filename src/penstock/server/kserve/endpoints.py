"""The endpoints of the dialect."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from starlette.requests import Request

from penstock.server.kserve import errors, models
from penstock.server.kserve.field_table import rules_of
from penstock.server.kserve.handlers import KServeHandlers
from penstock.server.kserve.paths import (
    GENERATE,
    GENERATE_STREAM,
    INDEX,
    INFER,
    LOAD,
    MODEL,
    UNLOAD,
)
from penstock.server.kserve.protocol import (
    GeneratedText,
    InferenceError,
    InferRequest,
    InferResponse,
    TextRequest,
)
from penstock.server.openapi import Access, Endpoint

_Handler = Callable[[Request], Awaitable[Any]]


def kserve_endpoints(of: KServeHandlers) -> list[Endpoint]:
    """All of them; the path of the model alone, which others begin with, is last."""
    told = of.status
    return [
        _work(GENERATE, of.kserve_generate, "Continue a text, as Triton's generate extension does.",
              GeneratedText, TextRequest),
        _work(GENERATE_STREAM, of.kserve_generate_stream, "The same, as events.", None, TextRequest,
              GeneratedText),
        _work(INFER, of.kserve_infer, "Continue a text that is a tensor.", InferResponse,
              InferRequest),
        _get("/v2", told.kserve_server, "What the server is, as KServe tells it.",
             models.ServerMetadata),
        _get("/v2/health/live", told.kserve_live, "Whether it lives, for KServe.",
             models.ServerLive, "public"),
        _get("/v2/health/ready", told.kserve_ready, "Whether it serves, for KServe.",
             models.ServerReady, "public"),
        _get("/v2/models/stats", told.kserve_stats, "What it has served, as Triton counts.",
             models.StatisticsOfModels),
        _get(f"{MODEL}/ready", told.kserve_model_ready, "Whether the model can be asked.",
             models.ModelReady),
        _get(f"{MODEL}/config", of.kserve_config, "How Triton would configure the model.",
             models.TritonConfig),
        _get(f"{MODEL}/stats", told.kserve_model_stats, "What the model has served.",
             models.StatisticsOfModels),
        _get(MODEL, told.kserve_model, "The model's tensors.", models.ModelMetadata),
        _post(INDEX, told.kserve_index, "The models that there are: one.", models.RepositoryModel,
              models.RepositoryQuery, listed=True),
        _post(LOAD, of.kserve_load, "Load the model, which is loaded.", models.RepositoryModel,
              models.RepositoryChange),
        _post(UNLOAD, of.kserve_unload, "Refused: the model stays.", models.RepositoryModel,
              models.RepositoryChange),
    ]  # fmt: skip


def _work(
    path: str,
    handler: _Handler,
    summary: str,
    answer: type[msgspec.Struct] | None,
    body: type[msgspec.Struct],
    event: type[msgspec.Struct] | None = None,
) -> Endpoint:
    return Endpoint(
        "POST",
        path,
        handler,
        summary,
        answer,
        body,
        event,
        works=True,
        rules=rules_of(path),
        error=InferenceError,
        error_body=errors.body,
    )


def _post(
    path: str,
    handler: _Handler,
    summary: str,
    answer: type[msgspec.Struct],
    body: type[msgspec.Struct],
    listed: bool = False,
) -> Endpoint:
    return Endpoint(
        "POST",
        path,
        handler,
        summary,
        answer,
        body,
        listed=listed,
        error=InferenceError,
        error_body=errors.body,
    )


def _get(
    path: str,
    handler: _Handler,
    summary: str,
    answer: type[msgspec.Struct],
    access: Access = "user",
) -> Endpoint:
    return Endpoint(
        "GET",
        path,
        handler,
        summary,
        answer,
        access=access,
        error=InferenceError,
        error_body=errors.body,
    )
