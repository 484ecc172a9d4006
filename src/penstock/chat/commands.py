"""What a person can say to the conversation itself, rather than to the model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Protocol

from penstock.chat.conversation import Conversation, load_conversation, save_conversation
from penstock.chat.settings import shown_variables, unread_options, with_setting
from penstock.chat.used_sampling import UsedSampling
from penstock.errors import RequestError


class Session(Protocol):
    """What commands change and ask of a chat."""

    conversation: Conversation
    files: set[Path]
    """Files that ``/save`` has written since the program began, and may write again."""

    @property
    def chat_template_kwargs(self) -> Sequence[str] | None:
        """The variables that the model's chat template reads, where they are known."""

    @property
    def used_sampling(self) -> UsedSampling:
        """The sampling options that the next answer gets."""

    def describe(self) -> str: ...

    def say(self, text: str) -> None: ...

    def leave(self) -> None: ...


@dataclass(frozen=True)
class Command:
    """``/name argument``: ``act`` is given what stands behind the name, without spaces around."""

    name: str
    argument: str
    """What the help shows behind the name; empty for a command that takes nothing."""
    summary: str
    act: Callable[[Session, str], None]
    others: tuple[str, ...] = ()
    """Other names that do the same."""

    @property
    def usage(self) -> str:
        return f"/{self.name} {self.argument}".rstrip()


def command_words() -> list[str]:
    """Every command's name, with its slash."""
    return [f"/{command.name}" for command in COMMANDS]


def obey(session: Session, line: str) -> None:
    """Do what ``line``, which begins with a slash, says. Raises PenstockError and OSError."""
    word, _, argument = line.strip().partition(" ")
    name, argument = word[1:].lower(), argument.strip()
    for command in COMMANDS:
        if name == command.name or name in command.others:
            if argument and not command.argument:
                raise RequestError(f"{word} takes nothing, and {argument!r:.40} stands behind it")
            command.act(session, argument)
            return
    near = get_close_matches(word, command_words(), n=1)
    hint = f"did you mean {near[0]}?" if near else "/help lists the commands"
    raise RequestError(
        f"there is no command {word}; {hint} (a message that begins with a slash is written with a "
        "space before it)"
    )


def _help(session: Session, argument: str) -> None:
    width = max(len(command.usage) for command in COMMANDS)
    lines = [f"{command.usage:<{width}}  {command.summary}" for command in COMMANDS]
    session.say("\n".join([*lines, *_KEYS]))


def _system(session: Session, argument: str) -> None:
    if not argument:
        session.say(session.conversation.system or "there is no system message")
        return
    text = "" if argument == "none" else argument
    session.conversation = session.conversation.with_system(text)
    session.say("the system message is set" if text else "there is no system message now")


def _set(session: Session, argument: str) -> None:
    name, _, value = argument.partition(" ")
    known = session.chat_template_kwargs
    if name and not value.strip():
        raise RequestError(f"/set {name} needs a value, or `default`")
    if name:
        session.conversation = with_setting(session.conversation, name, value.strip(), known)
    session.say(f"parameters: {session.used_sampling}")
    if not name or session.conversation.chat_template_kwargs:
        session.say(f"chat template: {shown_variables(session.conversation, known)}")


def _show(session: Session, argument: str) -> None:
    session.say(session.describe())


def _clear(session: Session, argument: str) -> None:
    session.conversation = session.conversation.clear()
    session.say("the messages are forgotten; system message and parameters stay")


def _load(session: Session, argument: str) -> None:
    path = _file("load", argument)
    session.conversation = load_conversation(path)
    session.say(f"{_turns(session.conversation.turns)} of {path}")
    unread = unread_options(session.conversation, session.chat_template_kwargs)
    if unread:
        session.say(f"the chat template does not read {', '.join(unread)}, which the file sets")


def _save(session: Session, argument: str) -> None:
    path = _file("save", argument)
    save_conversation(session.conversation, path, overwrite=path.resolve() in session.files)
    session.files.add(path.resolve())
    session.say(f"{_turns(session.conversation.turns)} saved in {path}")


def _exit(session: Session, argument: str) -> None:
    session.leave()


def _file(name: str, argument: str) -> Path:
    if not argument:
        raise RequestError(f"/{name} needs the name of a file")
    try:
        return Path(argument).expanduser()
    except RuntimeError:
        raise RequestError(
            f"/{name} {argument}: there is no such home folder; write ./{argument} if ~ is part of "
            "the file's name"
        ) from None


def _turns(count: int) -> str:
    return "1 turn" if count == 1 else f"{count} turns"


COMMANDS = (
    Command("help", "", "list the commands", _help, ("?", "h")),
    Command("system", "[TEXT|none]", "say what the model should be, or show what is said", _system),
    Command(
        "set",
        "[NAME VALUE]",
        "set a parameter or a variable of the template; `default` unsets",
        _set,
    ),
    Command("show", "", "show the model, what is set, and the system message", _show),
    Command("load", "FILE", "go on with the conversation in a file", _load),
    Command("save", "FILE", "write the conversation to a file", _save),
    Command("clear", "", "forget the messages", _clear, ("reset", "new")),
    Command("exit", "", "leave", _exit, ("quit", "bye", "q")),
)

_KEYS: Iterable[str] = (
    "",
    'Three quotation marks (""") begin and end a message of several lines.',
    "Ctrl-C stops an answer; at the prompt it clears the line, and on an empty line, pressed "
    "again, it leaves. So does Ctrl-D.",
)
