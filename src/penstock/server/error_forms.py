"""How each dialect tells errors, by the paths of its endpoints."""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from penstock.server.anthropic import errors as anthropic
from penstock.server.errors import ApiError
from penstock.server.kserve import errors as kserve
from penstock.server.llama import errors as llama
from penstock.server.llama.paths import COMPLETION, COMPLETIONS, INFILL, SLOTS, TEMPLATE
from penstock.server.ollama import errors as ollama
from penstock.server.openai.paths import RESPONSES
from penstock.server.sse import ErrorWriter, error_event, event
from penstock.server.tgi import errors as tgi
from penstock.server.tgi.paths import EITHER, GENERATE, STREAM


class ErrorForm(NamedTuple):
    body: ErrorWriter
    """Writes the body of a response that refuses a request."""
    last: ErrorWriter
    """Writes what a stream ends with that ends early."""


def _response_event(failure: ApiError) -> bytes:
    said = failure.body.error
    told = {"type": "error", "code": said.code, "message": said.message, "param": None}
    return event(msgspec.json.encode(told))


_OPENAI: Final = ErrorForm(ApiError.json, error_event)
_RESPONSES: Final = ErrorForm(ApiError.json, _response_event)
_ANTHROPIC: Final = ErrorForm(anthropic.body, anthropic.event)
_OLLAMA: Final = ErrorForm(ollama.body, ollama.line)
_KSERVE: Final = ErrorForm(kserve.body, kserve.event)
_LLAMA: Final = ErrorForm(llama.body, llama.event)
_TGI: Final = ErrorForm(tgi.body, tgi.event)


def error_form(path: str) -> ErrorForm:
    """That of the dialect which has a path; OpenAI's for those that none has."""
    if path == RESPONSES:
        return _RESPONSES
    if path.startswith("/v1/messages"):
        return _ANTHROPIC
    if path.startswith("/api/"):
        return _OLLAMA
    if path == "/v2" or (path.startswith("/v2/") and path != "/v2/rerank"):
        return _KSERVE
    if path in (COMPLETION, COMPLETIONS, INFILL, TEMPLATE, SLOTS):
        return _LLAMA
    if path in (GENERATE, STREAM, EITHER):
        return _TGI
    return _OPENAI
