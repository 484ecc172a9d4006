"""What has been said, and what is asked of who answers."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from secrets import randbits
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from penstock.chat.parameters import ChatParameters
from penstock.errors import RequestError
from penstock.json_text import MAX_VALUE_DEPTH, decoded
from penstock.regular_file import read_regular
from penstock.written_file import write_json


class Message(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One message, as OpenAI's API has it."""

    role: Literal["system", "user", "assistant"]
    content: str
    reasoning_content: str = ""
    """What the model thought before; it is kept, and not shown to the model again."""


class Conversation(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """A conversation so far. Methods return a changed one; this one stays as it is.

    ``messages`` are those of user and assistant, in turns; ``system`` stands before them, if it is
    not empty.
    """

    system: str = ""
    parameters: ChatParameters = ChatParameters()
    chat_template_kwargs: dict[str, Any] = {}
    """Variables of the chat template that are set, such as ``enable_thinking``."""
    messages: tuple[Message, ...] = ()
    drawn_seed: int | None = None
    """The seed where the person sets none: drawn once, so that the answers can be repeated."""

    def ask(self, text: str) -> Conversation:
        """Append a message of the user's."""
        return replace(self, messages=(*self.messages, Message("user", text)))

    def answer(self, text: str, reasoning: str = "") -> Conversation:
        """Append a message of the assistant's."""
        return replace(self, messages=(*self.messages, Message("assistant", text, reasoning)))

    def clear(self) -> Conversation:
        """Forget the messages and the seed that was drawn; system message and parameters stay."""
        return replace(self, messages=(), drawn_seed=None)

    def seeded(self) -> Conversation:
        """Draw a seed, if none was drawn before."""
        return self if self.drawn_seed is not None else replace(self, drawn_seed=randbits(32))

    def with_system(self, text: str) -> Conversation:
        return replace(self, system=text)

    def with_parameters(self, parameters: ChatParameters) -> Conversation:
        return replace(self, parameters=parameters)

    def with_chat_template_kwarg(self, name: str, text: str) -> Conversation:
        """One variable of the chat template replaced by what a person wrote: JSON, or else the
        text itself; ``default`` unsets it. Raises RequestError for JSON that is nested too
        deeply."""
        options = {**self.chat_template_kwargs, name: _value(name, text)}
        if text == "default":
            del options[name]
        return replace(self, chat_template_kwargs=options)

    @property
    def turns(self) -> int:
        """Number of messages of the user's."""
        return sum(message.role == "user" for message in self.messages)

    def as_messages(self) -> list[dict[str, Any]]:
        """What a model is shown: role and content of each message, the system message first."""
        system = [Message("system", self.system)] if self.system else []
        return [{"role": m.role, "content": m.content} for m in (*system, *self.messages)]


def _value(name: str, text: str) -> Any:
    try:
        return decoded(text, Any, MAX_VALUE_DEPTH)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return text
    except ValueError as error:
        raise RequestError(f"the value of {name} cannot be taken: {error}", name) from None


def save_conversation(conversation: Conversation, path: Path, overwrite: bool) -> None:
    """Write a conversation as JSON, whole or not at all.

    Raises RequestError if there is such a file and it may not be overwritten, or no folder for it,
    and OSError with the name of ``path``.
    """
    if path.exists() and not overwrite:
        raise RequestError(f"{path} exists; name another file, or remove it first", "file")
    if not path.parent.is_dir():
        raise RequestError(
            f"there is no folder {path.parent}; make it, or name another file", "file"
        )
    partial = path.with_name(path.name + f".{os.getpid()}.partial")
    try:
        write_json(partial, conversation)
        partial.replace(path)
    except OSError as error:  # which names the partial file
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        with suppress(OSError):  # it has the file's name by now, or what went wrong is told already
            partial.unlink()


def load_conversation(path: Path) -> Conversation:
    """A conversation of a file that :func:`save_conversation` wrote, or of a JSON array of
    messages. Raises RequestError for what is neither, and OSError."""
    text = read_regular(path)
    try:
        if text.lstrip()[:1] == b"[":
            messages = decoded(text, tuple[Message, ...])
            conversation = Conversation(messages=messages)
        else:
            conversation = decoded(text, Conversation)
    except ValueError as error:
        raise RequestError(
            f"{path} is no conversation: {error}; /save writes one, and an array of messages with "
            "role and content is one",
            "file",
        ) from None
    first, *rest = conversation.messages or (None,)
    if first is not None and first.role == "system":
        if conversation.system:
            raise RequestError(f"{path} has two system messages; keep one", "file")
        conversation = replace(conversation, system=first.content, messages=tuple(rest))
    for message in conversation.messages:
        if message.role == "system":
            raise RequestError(f"{path}: a system message can only be the first", "file")
    conversation.parameters.check()
    return conversation
