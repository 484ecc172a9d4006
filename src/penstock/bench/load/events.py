"""Reads a streamed answer as it comes, byte by byte if need be, and notes when its tokens came."""

from __future__ import annotations

from array import array
from typing import Annotated, Any, Final

import msgspec

_MAX_LINE: Final = 4 << 20
_Count = Annotated[int, msgspec.Meta(ge=0)]


class NoStream(Exception):
    """What came is not what OpenAI's API streams."""


class ServerError(Exception):
    """The stream has an error of the server's in it."""


class _Delta(msgspec.Struct, gc=False):
    content: str | list[Any] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[Any] | None = None


class _Choice(msgspec.Struct, gc=False):
    delta: _Delta | None = None
    text: str | None = None
    finish_reason: str | None = None


class _PromptDetails(msgspec.Struct, gc=False):
    cached_tokens: _Count | None = None


class _OutputDetails(msgspec.Struct, gc=False):
    reasoning_tokens: _Count | None = None
    accepted_prediction_tokens: _Count | None = None
    rejected_prediction_tokens: _Count | None = None


class Usage(msgspec.Struct, gc=False):
    """What the server says that an answer has cost."""

    prompt_tokens: _Count | None = None
    completion_tokens: _Count | None = None
    prompt_tokens_details: _PromptDetails | None = None
    completion_tokens_details: _OutputDetails | None = None


class _Chunk(msgspec.Struct, gc=False):
    choices: list[_Choice] = []
    usage: Usage | None = None
    error: Any = None


_DECODER: Final = msgspec.json.Decoder(_Chunk)


class EventReader:
    """The server-sent events of one answer.

    A chunk counts if it has text, reasoning or a part of a tool's call; others (a role, a finish
    reason, the usage) are no tokens.
    """

    __slots__ = (
        "_buffer",
        "_keep",
        "_texts",
        "done",
        "finish_reason",
        "first_content",
        "times",
        "usage",
    )

    def __init__(self, keep_text: bool = False) -> None:
        self.times = array("d")
        """When each chunk that counts was received, in the clock of who feeds."""
        self.first_content: int | None = None
        """Index among ``times`` of the first chunk that is more than reasoning."""
        self.finish_reason: str | None = None
        self.usage: Usage | None = None
        self.done = False
        """Whether ``[DONE]`` has come."""
        self._keep = keep_text
        self._texts: list[str] = []
        self._buffer = b""

    @property
    def complete(self) -> bool:
        """Whether the answer has come to its end."""
        return self.done or self.finish_reason is not None

    @property
    def text(self) -> str:
        """The answer, if it is kept, without its reasoning."""
        return "".join(self._texts)

    def feed(self, data: bytes, now: float) -> None:
        """Take in what was received at ``now``. Raises NoStream and ServerError."""
        if self._buffer:
            data = self._buffer + data
        end = data.rfind(b"\n") + 1
        self._buffer = data[end:]
        if len(self._buffer) > _MAX_LINE:
            raise NoStream(f"a line of more than {_MAX_LINE >> 20} MiB")
        for line in data[:end].split(b"\n"):
            if line.startswith(b"data:"):
                self._event(line[5:].strip(), now)
            elif line and not line.startswith((b":", b"event:", b"id:", b"retry:", b"\r")):
                raise NoStream(f"a line that is no event: {shown(line)}")

    def _event(self, data: bytes, now: float) -> None:
        if data == b"[DONE]":
            self.done = True
            return
        if not data:
            return
        try:
            chunk = _DECODER.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise NoStream(f"{error}: {shown(data)}") from None
        if chunk.error is not None:
            raise ServerError(shown(msgspec.json.encode(chunk.error)))
        if chunk.usage is not None:
            self.usage = chunk.usage
        for choice in chunk.choices[:1]:
            self._take(choice, now)

    def _take(self, choice: _Choice, now: float) -> None:
        delta = choice.delta
        text = choice.text if delta is None else delta.content
        if text or (delta is not None and delta.tool_calls):
            if self.first_content is None:
                self.first_content = len(self.times)
            self.times.append(now)
            if self._keep and isinstance(text, str):
                self._texts.append(text)
        elif delta is not None and (delta.reasoning_content or delta.reasoning):
            self.times.append(now)
        if choice.finish_reason is not None:
            self.finish_reason = choice.finish_reason


def shown(data: bytes) -> str:
    """The beginning of what a server sent, for an error's message."""
    text = " ".join(data[:300].decode(errors="replace").split())
    return text[:200] or "(nothing)"
