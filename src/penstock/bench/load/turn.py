"""What is asked of a server: conversations, and their turns."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Piece:
    """So many tokens of random text. Pieces of one key are the same text, as far as the shorter
    one goes, so prompts that begin with them share a prefix."""

    key: tuple[int, ...]
    tokens: int


@dataclass(frozen=True, slots=True)
class Turn:
    """One request.

    ``content`` is what is new in its prompt: texts as they are, and random ones.
    """

    content: tuple[Piece | str, ...]
    output_tokens: int | None = None
    """None lets the server end the answer where it likes."""
    after: tuple[int, ...] = ()
    """Earlier turns of the conversation, by index, whose answers must be complete before."""
    delay_s: float = 0.0
    """Seconds between that moment (without ``after``, the conversation's start) and this turn."""
    continues: int | None = None
    """The earlier turn whose whole prompt and answer come before ``content``; None: a prompt of its
    own."""
    whole: bool = False
    """Whether ``content`` has the tokens of the whole prompt, with those that the server puts
    around a text, as recorded prompts have."""
    pattern: str | None = None
    """A name under which figures are given by themselves."""

    @property
    def new_tokens(self) -> int | None:
        """Tokens of ``content``; None where texts of unknown length are in it."""
        if any(isinstance(part, str) for part in self.content):
            return None
        return sum(part.tokens for part in self.content if isinstance(part, Piece))


@dataclass(frozen=True, slots=True)
class Conversation:
    """Turns that belong together; most conversations have one."""

    name: str
    turns: tuple[Turn, ...]
    at_s: float | None = None
    """Seconds from the first of its trace to this one; None where there is no such time."""


def chain(
    contents: list[tuple[Piece | str, ...]],
    outputs: list[int | None],
    delays_s: list[float],
    pattern: str | None = None,
) -> tuple[Turn, ...]:
    """The turns of a chat: each follows the one before, and has all of it in its prompt."""
    return tuple(
        Turn(
            content,
            output,
            after=(index - 1,) if index else (),
            delay_s=delay,
            continues=index - 1 if index else None,
            pattern=pattern,
        )
        for index, (content, output, delay) in enumerate(
            zip(contents, outputs, delays_s, strict=True)
        )
    )
