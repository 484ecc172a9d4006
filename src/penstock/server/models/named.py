"""Which model a request is for."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl, quote

import msgspec
from msgspec import UNSET, UnsetType
from starlette.types import Scope

from penstock.server.anthropic import paths as anthropic
from penstock.server.bodies import MAX_IN_LOOP_BYTES
from penstock.server.errors import ApiError
from penstock.server.keys import WORKLOAD
from penstock.server.llama import paths as llama
from penstock.server.ollama import paths as ollama_paths
from penstock.server.openai import paths as openai
from penstock.server.prefixes import PIN, PREFIXES, REMOVE, RENAME
from penstock.server.tgi import paths as tgi

BY_BODY: Final = frozenset(
    {
        *(openai.COMPLETIONS, openai.CHAT, openai.RESPONSES, openai.EMBEDDINGS, openai.TOKENIZE),
        *(*openai.CLASSIFIES, *openai.SCORES, *openai.RERANKS, openai.POOLING),
        *("/detokenize", anthropic.MESSAGES, anthropic.COUNT, "/admin/cache/keys"),
        PIN,
        *(ollama_paths.GENERATE, ollama_paths.CHAT, ollama_paths.EMBED, ollama_paths.OLD_EMBED),
        ollama_paths.SHOW,
        *(llama.COMPLETION, llama.COMPLETIONS, llama.INFILL, llama.TEMPLATE),
        *(tgi.GENERATE, tgi.STREAM, tgi.EITHER),
    }
)
"""Paths of requests whose body names the model, as ``model``."""
BY_QUERY: Final = frozenset({llama.PROPS, tgi.INFO, "/admin/profile"})
"""Paths of requests that have no such body: their query may name it, as llama-server's router has
it."""
OBSERVING: Final = frozenset(
    {
        *(llama.SLOTS, "/engine/events", WORKLOAD),
        *("/admin/cache/events", "/admin/cache/clear", "/admin/check"),
        *(PREFIXES, REMOVE, RENAME),
    }
)
"""Paths of requests that look at a model, also named by their query: for them none is loaded, and
none stays that others need the memory of."""
_MODEL: Final = re.compile(
    r"/v2/models/(?P<name>.+?)(?:/versions/(?P<version>[^/]+))?"
    r"(?P<rest>/(?:infer|generate|generate_stream|config|stats|ready))?"
)


class _Named(msgspec.Struct):
    model: object = UNSET
    name: object = UNSET
    keep_alive: object = UNSET


@dataclass(frozen=True)
class Asked:
    """What a request says of the model that it is for."""

    name: str | None = None
    """None: it says nothing."""
    version: str | None = None
    path: str | None = None
    """What follows the model's name in the path, where that names it."""
    keep_alive: float | str | UnsetType = UNSET
    """The time for which it wants the model to stay, as Ollama's clients say it."""


_DECODER: Final = msgspec.json.Decoder(_Named)


async def asked_in(path: str, body: bytes) -> Asked:
    """What the body of a request says. Raises ApiError for one that is no JSON."""
    if not body:
        return Asked()
    try:
        if len(body) <= MAX_IN_LOOP_BYTES:
            found = _DECODER.decode(body)
        else:
            found = await asyncio.to_thread(_DECODER.decode, body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ApiError(400, f"the body is no JSON object: {error}") from None
    named = found.model
    if named is UNSET and path == ollama_paths.SHOW:
        named = found.name
    if named is UNSET or named is None:
        return Asked()
    if not isinstance(named, str):
        raise ApiError(400, "model must be a text", param="model")
    keep = found.keep_alive
    of_ollama = path.startswith("/api/") and isinstance(keep, int | float | str)
    return Asked(named, keep_alive=keep if of_ollama else UNSET)  # type: ignore[arg-type]


def model_path(path: str) -> Asked | None:
    """What a path of KServe's says that is about one model."""
    match = _MODEL.fullmatch(path)
    if match is None or path == "/v2/models/stats":
        return None
    return Asked(match["name"], match["version"], match["rest"] or "")


def query_model(scope: Scope) -> Asked:
    """What the query says."""
    query = scope["query_string"].decode("latin-1")
    return Asked(dict(parse_qsl(query)).get("model"))


def at_model(scope: Scope, name: str, rest: str) -> Scope:
    """The request as it is to a server of one model, under the name by which that is served."""
    path = f"/v2/models/{name}{rest}"
    return {**scope, "path": path, "raw_path": quote(path).encode("ascii")}
