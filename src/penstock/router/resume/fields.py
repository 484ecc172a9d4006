"""Streams whose events are alike: objects with the same fields, some of which continue a text or a
list. They are Ollama's, llama-server's, KServe's and Text Generation Inference's.

All other fields tell where the run is (counts, times) or are the same in each event, so that they
are sent as they come.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Final

from penstock.router.resume.framing import LINES
from penstock.router.resume.parts import Part, Path, strange
from penstock.router.resume.stream import Event, Stream, decoded

_COUNT: Final = "num_output_tokens"
_REASON: Final = "finish_reason"
_NO_REASON: Final = "None"
"""What the events of KServe's before the last have, where the reason is asked for."""


class FieldStream(Stream):
    """A stream of a dialect whose events continue the fields at ``grown``."""

    grown: ClassVar[tuple[Path, ...]]

    def _note(self, data: bytes) -> None:
        for part in self._parts(decoded(data)):
            self.parts.add(part)

    def _rest(self, data: bytes) -> bytes | None:
        event = decoded(data)
        if "error" in event:
            return self.framing.event(data)
        fresh = is_last = self._is_last(event)
        for part in self._parts(event):
            left = self.parts.left(part)
            fresh = fresh or left is not None
            if part.grows:
                self._put(event, part.path, part.value[:0] if left is None else left)
        if is_last:
            self.parts.check_reached()
        return self._event(event) if fresh else None

    def _parts(self, event: Event) -> Iterator[Part]:
        """What an event adds; what it has of its own is left out."""
        for path in self.grown:
            *within, name = path
            holder: Any = event
            for each in within:
                holder = holder.get(each, {})
            if name in holder:
                if not isinstance(holder[name], str | list):
                    raise strange()
                yield Part(path, holder[name], True)

    @staticmethod
    def _put(event: Event, path: Path, value: Any) -> None:
        *within, name = path
        holder: Any = event
        for each in within:
            holder = holder[each]
        holder[name] = value


class OllamaStream(FieldStream):
    """A stream of ``/api/generate`` or ``/api/chat``."""

    framing = LINES
    grown = (
        ("response",),
        ("thinking",),
        *(("message", name) for name in ("content", "thinking", "tool_calls")),
        ("logprobs",),
    )

    def _is_last(self, event: Event) -> bool:
        return event.get("done") is True


class LlamaStream(FieldStream):
    """A stream of llama-server's ``/completion`` or ``/infill``."""

    grown = (("content",), ("tokens",), ("completion_probabilities",))

    def _is_last(self, event: Event) -> bool:
        # Of the last the client may have wanted other fields alone.
        return event.get("stop", True) is True


class TokenStream(FieldStream):
    """A stream of Text Generation Inference's, whose events are not cut: each is of one token."""

    grown = ()

    def _parts(self, event: Event) -> Iterator[Part]:
        if "token" not in event:
            raise strange()
        yield Part(("tokens",), [event], True)

    @staticmethod
    def _put(event: Event, path: Path, value: Any) -> None:
        """An event is sent whole, or not at all."""

    def _is_last(self, event: Event) -> bool:
        return event.get("generated_text") is not None


class TextStream(FieldStream):
    """A stream of KServe's ``generate_stream``. No event is marked as the last; the body ends."""

    grown = (("text_output",),)

    def __init__(self) -> None:
        super().__init__()
        self._is_first_run = True

    def begin(self) -> None:
        super().begin()
        self._is_first_run = False

    def ended(self) -> bool:
        if not self._is_first_run:
            self.parts.check_reached()
        return True

    def _parts(self, event: Event) -> Iterator[Part]:
        yield from super()._parts(event)
        if _COUNT in event:  # of the event's own tokens: it grows as a text of that length does
            yield Part((_COUNT,), bytes(event[_COUNT]), True)
        if event.get(_REASON, _NO_REASON) != _NO_REASON:
            yield Part((_REASON,), event[_REASON], False)

    @staticmethod
    def _put(event: Event, path: Path, value: Any) -> None:
        FieldStream._put(event, path, len(value) if path == (_COUNT,) else value)

    def _is_last(self, event: Event) -> bool:
        return False
