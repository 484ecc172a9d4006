"""The paths that are passed on, and the model that a request is for."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import parse_qsl

from penstock.router.asked import Body, text_of
from penstock.server.anthropic.paths import MESSAGES
from penstock.server.kserve import paths as kserve
from penstock.server.llama import paths as llama
from penstock.server.ollama import paths as ollama
from penstock.server.openai import paths as openai
from penstock.server.tgi import paths as tgi

PASSED_ON: Final = {
    "/v1/{rest:path}": ("GET", "POST", "DELETE"),
    **dict.fromkeys((openai.TOKENIZE, "/detokenize", openai.POOLING), ("POST",)),
    **dict.fromkeys((*openai.SCORES, *openai.RERANKS), ("POST",)),
    **dict.fromkeys((ollama.GENERATE, ollama.CHAT, ollama.EMBED, ollama.OLD_EMBED), ("POST",)),
    ollama.SHOW: ("POST",),
    "/api/version": ("GET",),
    **dict.fromkeys((llama.COMPLETION, llama.COMPLETIONS, llama.INFILL), ("POST",)),
    llama.TEMPLATE: ("POST",),
    **dict.fromkeys((llama.PROPS, llama.SLOTS), ("GET",)),
    **dict.fromkeys((tgi.GENERATE, tgi.STREAM, tgi.EITHER), ("POST",)),
    tgi.INFO: ("GET",),
    "/v2": ("GET",),
    "/v2/{rest:path}": ("GET", "POST"),
}
"""Paths, and the methods by which they are asked."""
CHANGES: Final = (
    *(f"/api/{what}" for what in ("pull", "push", "create", "copy", "delete")),
    *("/models/load", "/models/unload", kserve.LOAD, kserve.UNLOAD),
)
"""Paths of requests that change the models of a server, which would change one of them alone."""
_KEYED: Final = frozenset(
    {
        *(openai.COMPLETIONS, openai.CHAT, openai.RESPONSES, MESSAGES),
        *(ollama.GENERATE, ollama.CHAT),
        *(llama.COMPLETION, llama.COMPLETIONS, llama.INFILL),
        *(tgi.GENERATE, tgi.STREAM, tgi.EITHER),
    }
)
JSON_PATHS: Final = (_KEYED | {openai.EMBEDDINGS}) - {ollama.GENERATE, ollama.CHAT}
"""Paths of requests whose bodies must be said to be JSON."""
_KEYED_OF_MODEL: Final = {
    "/generate": kserve.GENERATE,
    "/generate_stream": kserve.GENERATE_STREAM,
}
_OF_MODEL: Final = re.compile(
    r"/v2/models/(?P<name>.+?)(?:/versions/[^/]+)?"
    r"(?P<rest>/(?:infer|generate|generate_stream|config|stats|ready))?"
)
_BY_QUERY: Final = (llama.PROPS, llama.SLOTS, tgi.INFO)
_CARD: Final = "/v1/models/"
_LATEST: Final = ":latest"


def keyed_as(path: str) -> str | None:
    """The name of an endpoint for whose prompts servers of Penstock's tell the keys; None for
    others."""
    if path in _KEYED:
        return path
    match = _OF_MODEL.fullmatch(path)
    return None if match is None else _KEYED_OF_MODEL.get(match["rest"])


def model_asked(path: str, query: bytes, body: Body | None) -> str | None:
    """The model that a request is for; None where it names none."""
    match = _OF_MODEL.fullmatch(path)
    if match is not None:
        return None if path == "/v2/models/stats" else match["name"]
    if path in _BY_QUERY:
        return dict(parse_qsl(query.decode("latin-1"))).get("model")
    if body is None:
        return path.removeprefix(_CARD) or None if path.startswith(_CARD) else None
    model = text_of(body.model)
    return text_of(body.name) if model is None and path == ollama.SHOW else model


def names_meant(path: str, model: str) -> tuple[str, ...]:
    """The names that a model may have which a request names, the likeliest first: Ollama's clients
    leave the tag out, or add it."""
    if not path.startswith("/api/"):
        return (model,)
    return model, model.removesuffix(_LATEST), f"{model}{_LATEST}"
