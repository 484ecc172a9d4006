"""A model that a server answers for, over OpenAI's API."""

from __future__ import annotations

import http.client
from collections.abc import Generator, Iterable
from typing import IO, Any, Final

import msgspec

from penstock.chat.chat_model import Delta, Usage
from penstock.chat.conversation import Conversation
from penstock.chat.event_stream import event_data
from penstock.chat.used_sampling import UsedSampling
from penstock.errors import ConfigError, PenstockError, RequestError
from penstock.json_text import decoded
from penstock.sampling.defaults import SamplingDefaults
from penstock.server_link import RefusedError, ServerLink, cause, message
from penstock.server_url import split_server_url

REPLY_S = 600.0
"""Seconds without a byte after which a server is given up: it may read a long prompt first."""
LIST_S = 30.0
"""The same for its list of models, which nothing has to be computed for."""
_MAX_BODY = 1 << 20
_NO_LIST = (403, 404, 405, 501)
"""Statuses of servers that answer chats, but show nobody, or not this key, their models."""
_KEY: Final = "; name the environment variable that holds your key by --api-key-env"
_HINTS: Final = {401: _KEY, 403: _KEY, 404: "; check the URL and the model's name"}


class _ChunkDelta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    """Another name of ``reasoning_content``."""


class _Choice(msgspec.Struct):
    delta: _ChunkDelta = msgspec.field(default_factory=_ChunkDelta)
    finish_reason: str | None = None


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    prompt_tokens_details: _Details | None = None

    def usage(self) -> Usage:
        details = self.prompt_tokens_details or _Details()
        return Usage(self.prompt_tokens, self.completion_tokens, details.cached_tokens or 0)


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


class ModelEntry(msgspec.Struct):
    """What a server says of a model."""

    id: str
    max_model_len: int | None = None
    """How many tokens prompt and answer may have, as Penstock's servers and vLLM's say."""
    chat_template_kwargs: tuple[str, ...] | None = None
    """The variables that its chat template reads, as Penstock's servers say."""
    sampling_defaults: SamplingDefaults | None = None
    """What its makers recommend, as Penstock's servers say."""


class _Models(msgspec.Struct):
    data: list[ModelEntry]


class NoListError(PenstockError):
    """The server does not say which models it has; it may answer chats all the same."""


class Endpoint:
    """The API of a server: ``url`` is where ``/models`` and ``/chat/completions`` are below.

    ``/v1`` is appended to a URL without a path. Raises ConfigError for what is no URL, and
    PenstockError with the cause where the server does not answer as asked.
    """

    def __init__(self, url: str, api_key: str | None = None) -> None:
        parts = split_server_url(url)
        path = parts.path.rstrip("/").removesuffix("/chat/completions") or "/v1"
        self.url = f"{parts.scheme}://{parts.netloc}{path}"
        self._link = ServerLink(self.url, api_key)

    def models(self) -> list[ModelEntry]:
        """The models that the server has. Raises NoListError where it does not say."""
        with self._open("/models", LIST_S) as reply:
            try:
                found = decoded(reply.read(_MAX_BODY), _Models)
            except (OSError, http.client.HTTPException) as error:
                raise PenstockError(
                    f"{self.url}/models broke off its answer: {cause(error)}; check that the "
                    "server runs"
                ) from None
            except ValueError as error:
                raise NoListError(
                    f"{self.url}/models does not list models as OpenAI's API does: {error}; check "
                    "the URL"
                ) from None
        return found.data

    def chat(self, body: dict[str, Any]) -> Generator[_Chunk, None, None]:
        """The chunks of a streamed answer."""
        try:
            asked = msgspec.json.encode(body)
        except UnicodeEncodeError:
            raise RequestError(
                "the model's name, or a setting, has bytes that are not UTF-8 text; write it again"
            ) from None
        with self._open("/chat/completions", REPLY_S, asked) as reply:
            ended = False
            for text in event_data(self._lines(reply)):
                try:
                    chunk = decoded(text, _Chunk)
                except ValueError as error:
                    raise PenstockError(
                        f"{self.url} does not stream as OpenAI's API does: {error}"
                    ) from None
                if chunk.error:
                    raise PenstockError(f"the server's error: {message(chunk.error)}")
                ended = ended or any(choice.finish_reason for choice in chunk.choices)
                yield chunk
            if not ended:
                raise PenstockError(f"{self.url} broke off its answer; ask again")

    def _lines(self, reply: IO[bytes]) -> Iterable[bytes]:
        try:
            yield from reply
        except (OSError, http.client.HTTPException) as error:
            raise PenstockError(f"{self.url} broke off its answer: {cause(error)}") from None

    def _open(self, path: str, timeout: float, body: bytes | None = None) -> IO[bytes]:
        try:
            return self._link.open(path, timeout, body)
        except RefusedError as error:
            unlisted = path == "/models" and error.status in _NO_LIST
            refused = NoListError if unlisted else PenstockError
            raise refused(f"{error}{_HINTS.get(error.status, '')}") from None


class RemoteModel:
    """A ChatModel of a server. ``model`` is the server's name for it; without one, the server must
    have a single model.

    Raises PenstockError where the server does not answer or has no model, and where it has several,
    or does not say, and none is named. A named one that it does not list may be there nevertheless.
    """

    interruptible = True

    def __init__(self, endpoint: Endpoint, model: str | None = None) -> None:
        self._endpoint = endpoint
        entries: list[ModelEntry] | None = None
        try:
            entries = endpoint.models()
        except NoListError:
            if model is None:
                raise
        if entries == []:
            raise ConfigError(f"{endpoint.url} has no model; load one there, or name another URL")
        if model is None:
            assert entries is not None
            if len(entries) > 1:
                names = ", ".join(entry.id for entry in entries[:20])
                raise ConfigError(f"{endpoint.url} has {names}; name one as MODEL")
            model = entries[0].id
        self._model = model
        self._entry = next((entry for entry in entries or () if entry.id == model), None)
        self._unlisted = entries is not None and self._entry is None

    @property
    def chat_template_kwargs(self) -> tuple[str, ...] | None:
        return None if self._entry is None else self._entry.chat_template_kwargs

    @property
    def sampling_defaults(self) -> SamplingDefaults | None:
        return None if self._entry is None else self._entry.sampling_defaults

    @property
    def context_tokens(self) -> int | None:
        return None if self._entry is None else self._entry.max_model_len

    @property
    def name(self) -> str:
        return self._model

    def describe(self) -> str:
        unlisted = ", which does not list it" if self._unlisted else ""
        return f"at {self._endpoint.url}{unlisted}"

    def stream(self, conversation: Conversation) -> Generator[Delta, None, None]:
        body: dict[str, Any] = {
            "model": self._model,
            "messages": conversation.as_messages(),
            "stream": True,
            "stream_options": {"include_usage": True},
            **UsedSampling(conversation, self.sampling_defaults).asked,
        }
        if conversation.chat_template_kwargs:
            body["chat_template_kwargs"] = conversation.chat_template_kwargs
        reason, usage = None, None
        for chunk in self._endpoint.chat(body):
            usage = chunk.usage.usage() if chunk.usage is not None else usage
            for choice in chunk.choices[:1]:
                reason = choice.finish_reason or reason
                new = choice.delta
                thought = new.reasoning_content or new.reasoning or ""
                if new.content or thought:
                    yield Delta(content=new.content or "", reasoning_content=thought)
        yield Delta(finish_reason=reason, usage=usage)

    def close(self) -> None:
        """Nothing is held between answers."""
