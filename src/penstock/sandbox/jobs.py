"""The messages to and from workers: jobs and their answers.

A job depends on nothing but its own fields, so it can be repeated after its worker died.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import msgspec

from penstock.errors import RequestError
from penstock.grammar.spec import GrammarSpec
from penstock.processes.frames import encode

Cause = Literal["time", "memory", "crash"]
"""How a job killed its worker: by processor time, by memory, or by a crash of native code (mostly a
stack overflow)."""

End = Cause | Literal["late", "lost"]
"""Why a job has no answer. ``late``: it exceeded the wall-clock limit. ``lost``: its worker is gone
and no cause was reported, so the job is not to blame."""

LONG_TEXT_BYTES = 1 << 17
"""Length in bytes from which tokenizing a text is expected to take more than 0.1 s."""
_TEXT_S = 3.0
_SECONDS_PER_MB = 10.0
_MOST_TEXT_S = 60.0
_GRAMMAR_S = 3.0


class Exceeded(RequestError):
    """The job exceeded a worker's limit or crashed it."""

    def __init__(self, message: str, param: str, cause: Cause) -> None:
        super().__init__(message, param)
        self.cause: Cause = cause


class CheckGrammar(msgspec.Struct, tag="check_grammar", frozen=True):
    """Whether a grammar can be compiled; answered by :class:`Checked`."""

    param: ClassVar[str] = "grammar"
    """The request field to name in errors."""
    kind: str
    """A Kind; whatever else a Python caller passed, the worker refuses."""
    text: str

    @classmethod
    def of(cls, spec: GrammarSpec) -> CheckGrammar:
        return cls(spec.kind, spec.text)

    @property
    def spec(self) -> GrammarSpec:
        return GrammarSpec(kind=self.kind, text=self.text)  # type: ignore[arg-type]

    @property
    def cpu_s(self) -> float:
        """Limit of processor time for the job, in seconds."""
        return _GRAMMAR_S

    @property
    def is_long(self) -> bool:
        """Whether the job is expected to be slow."""
        return False

    def died(self, cause: Cause) -> Exceeded:
        from penstock.grammar.notation import refusal

        match cause:
            case "time":
                message = f"compiling it takes more than {self.cpu_s:g} s of processor time; "
                message += "combine fewer patterns, formats and lengths"
            case "memory":
                message = "compiling it takes too much memory; combine fewer patterns, formats "
                message += "and lengths"
            case "crash":
                message = "it is nested too deep, counted along its references; shorten its "
                message += "chains of references"
        return Exceeded(str(refusal(self.spec, message, self.param)), self.param, cause)


class TokenizeChat(msgspec.Struct, tag="tokenize_chat", frozen=True, kw_only=True):
    """Render a chat template and tokenize the result; answered by :class:`Tokens` for one text.

    ``payload`` is JSON, as arguments of calls may hold numbers that msgpack cannot.
    """

    param: ClassVar[str] = "messages"
    tokenizer: str
    """The folder or file that holds the tokenizer and its templates."""
    payload: bytes
    add_generation_prompt: bool
    continue_final_message: bool
    add_special_tokens: bool
    max_tokens: int | None
    """Token limit: a text that certainly has more is refused before it is tokenized."""
    chat_template: str = ""
    """A template that takes the place of the tokenizer's own, if it is not empty."""

    @classmethod
    def of(
        cls,
        tokenizer: str,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        chat_template_kwargs: Mapping[str, Any],
        *,
        add_generation_prompt: bool,
        add_special_tokens: bool,
        max_tokens: int | None,
        continue_final_message: bool = False,
        chat_template: str = "",
    ) -> TokenizeChat:
        """Make a job. Raises RequestError for messages that are not valid JSON."""
        try:
            text = json.dumps([messages, tools, chat_template_kwargs], ensure_ascii=False)
        except (ValueError, TypeError, RecursionError) as error:
            raise RequestError(f"the messages are no JSON: {error}", "messages") from None
        return cls(
            tokenizer=tokenizer,
            payload=text.encode("utf-8", "surrogatepass"),
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            add_special_tokens=add_special_tokens,
            max_tokens=max_tokens,
            chat_template=chat_template,
        )

    def parts(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]], dict[str, Any]]:
        """Return the messages, the tools and the template's options."""
        messages, tools, options = json.loads(self.payload)
        return messages, tools, options

    @property
    def cpu_s(self) -> float:
        return _text_seconds(len(self.payload))

    @property
    def is_long(self) -> bool:
        return len(self.payload) > LONG_TEXT_BYTES

    def died(self, cause: Cause) -> Exceeded:
        message = {
            "time": f"rendering and tokenizing took more than {self.cpu_s:g} s of processor time",
            "memory": "rendering and tokenizing took too much memory",
            "crash": "rendering and tokenizing overflowed a stack or crashed",
        }[cause]
        return Exceeded(
            f"the chat template asked for too much: {message}; shorten the messages, or use "
            "another chat template",
            self.param,
            cause,
        )


class Tokenize(msgspec.Struct, tag="tokenize", frozen=True, kw_only=True):
    """Tokenize texts; answered by :class:`Tokens`."""

    param: str = "prompt"
    """The field of the request that holds the longest of them."""
    tokenizer: str
    texts: list[str]
    add_special_tokens: bool
    parse_special: bool

    @property
    def size(self) -> int:
        return sum(map(len, self.texts))

    @property
    def cpu_s(self) -> float:
        return _text_seconds(self.size)

    @property
    def is_long(self) -> bool:
        return self.size > LONG_TEXT_BYTES

    def died(self, cause: Cause) -> Exceeded:
        message = {
            "time": f"takes more than {self.cpu_s:g} s of processor time",
            "memory": "takes too much memory",
            "crash": "crashes the tokenizer",
        }[cause]
        return Exceeded(
            f"tokenizing the {self.size} characters of {self.param} {message}; shorten it",
            self.param,
            cause,
        )


class Checked(msgspec.Struct, tag="checked", frozen=True):
    fault: str | None


class Tokens(msgspec.Struct, tag="tokens", frozen=True):
    """The token ids of each text as packed 32-bit integers: millions of them as lists would block
    an event loop."""

    rows: list[bytes]

    @classmethod
    def of(cls, texts: Sequence[Sequence[int]]) -> Tokens:
        return cls([array("I", ids).tobytes() for ids in texts])

    def lists(self) -> list[list[int]]:
        return [array("I", row).tolist() for row in self.rows]


class Refused(msgspec.Struct, tag="refused", frozen=True):
    """The job was refused with a RequestError."""

    message: str
    param: str | None
    too_long: bool = False
    """Whether it was a ContextLengthError."""


class Exhausted(msgspec.Struct, tag="exhausted", frozen=True):
    """The job ran out of the memory that a worker may have, and the worker itself noticed."""


class Failed(msgspec.Struct, tag="failed", frozen=True):
    """An internal error, which the request did not cause."""

    trace: str


class Started(msgspec.Struct, tag="started", frozen=True):
    """The first message on a worker's socket: the process ``pid`` accepts jobs."""

    pid: int


class Died(msgspec.Struct, tag="died", frozen=True):
    """The last message on the socket of a worker that its job has ended, sent by the worker's
    keeper."""

    cause: Cause


Job = CheckGrammar | TokenizeChat | Tokenize
Answer = Checked | Tokens | Refused | Exhausted | Failed
FromWorker = Answer | Started | Died


class Task(msgspec.Struct, frozen=True):
    """A job as it is sent, with its limit of processor time in seconds."""

    cpu_s: float
    job: Job


def _text_seconds(size: int) -> float:
    return round(min(_TEXT_S + _SECONDS_PER_MB * size / 1e6, _MOST_TEXT_S), 1)


def encode_job(job: Job) -> bytes:
    """Return the frame of a job for a worker. Raises RequestError for a lone surrogate."""
    try:
        return encode(Task(job.cpu_s, job))
    except UnicodeEncodeError:
        raise RequestError(
            f"the {job.param} holds a lone surrogate; send valid UTF-8", job.param
        ) from None
