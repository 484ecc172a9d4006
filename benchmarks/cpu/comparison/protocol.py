"""What the driver and an engine's worker say to each other: one JSON object a line.

The driver writes Load, Run, Score and Quit; the worker answers Loaded, Ran and Scored, or Failed
with the reason. Workers run in environments of their own, so this file needs the standard library
alone.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar


class ProtocolError(Exception):
    """A line that is no message, or not the one that was due."""


@dataclass(frozen=True)
class Request:
    """A prompt of token ids, and how many tokens must be generated: no fewer, no more."""

    prompt: list[int]
    output: int


@dataclass(frozen=True)
class Load:
    """Load the model at ``model`` for ``max_sequences`` at a time of at most ``max_length``.

    ``kv_bytes`` is what the largest case fills of a bfloat16 cache: engines that want to know the
    size of theirs are given enough for it, so that none has to compute a sequence twice.
    """

    kind: ClassVar[str] = "load"
    model: str
    precision: str
    threads: int
    max_sequences: int
    max_length: int
    kv_bytes: int
    settings: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Loaded:
    """The engine is ready. ``settings`` is what was chosen, for the reader of the report.

    ``settings["isa"]`` is what the engine itself says of the instructions that it uses; a cap is
    checked by it. Of a server, ``url`` is where it listens until the worker quits, and ``body`` has
    what its requests need beside the common fields.
    """

    kind: ClassVar[str] = "loaded"
    seconds: float
    settings: dict[str, str]
    url: str | None = None
    body: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Run:
    """Offer all requests at once, or over ``clients`` connections, each one after the other."""

    kind: ClassVar[str] = "run"
    requests: list[Request]
    clients: int | None = None


@dataclass(frozen=True)
class Ran:
    """``times[i][j]``: seconds from the start to token ``j`` of request ``i``."""

    kind: ClassVar[str] = "ran"
    times: list[list[float]]
    cpu_seconds: float
    """Processor time of the worker and of the processes it started, over the run."""
    other_cpu_seconds: float
    """Processor time of everything else on the machine over the run, with what a hypervisor
    took."""
    seconds: float
    """How long the run took."""


@dataclass(frozen=True)
class Score:
    """Read each window of token ids from an empty context. Tokens from place ``first`` of a window
    on count, which is at least 1."""

    kind: ClassVar[str] = "score"
    windows: list[list[int]]
    first: int


@dataclass(frozen=True)
class Scored:
    """``loss``: the negative log-probabilities of the tokens that count, in nats, added up."""

    kind: ClassVar[str] = "scored"
    loss: float


@dataclass(frozen=True)
class Quit:
    kind: ClassVar[str] = "quit"


@dataclass(frozen=True)
class Failed:
    kind: ClassVar[str] = "failed"
    error: str


Message = Load | Loaded | Run | Ran | Score | Scored | Quit | Failed
_KINDS: dict[str, type[Message]] = {
    cls.kind: cls for cls in (Load, Loaded, Run, Ran, Score, Scored, Quit, Failed)
}


def encode(message: Message) -> str:
    """One line, with its end."""
    return json.dumps({"kind": message.kind, **asdict(message)}) + "\n"


def decode(line: str) -> Message:
    """Raises ProtocolError for anything that is not a whole message."""
    try:
        fields: dict[str, Any] = json.loads(line)
        cls = _KINDS[fields.pop("kind")]
        if cls is Run:
            fields["requests"] = [Request(**request) for request in fields["requests"]]
        return cls(**fields)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ProtocolError(f"not a message: {line[:200]!r} ({error!r})") from None
