"""What all readers of calls do: take the text of one call as it comes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol

Tools = Mapping[str, Mapping[str, Any]]
"""The functions that may be called: the schemas of their arguments, by their names."""

MAX_NAME: Final = 64
"""Characters in a tool's name, as in OpenAI's API."""
MAX_KEY: Final = 256
"""Characters in an argument's name."""


class NotACall(Exception):
    """The text is no call of one of the tools, whatever may follow."""


class CallReader(Protocol):
    """Reads one call, from its first character that is no space."""

    @property
    def name(self) -> str | None:
        """What is called, as soon as it is known."""

    @property
    def done(self) -> bool:
        """Whether the call is whole."""

    @property
    def announced(self) -> bool:
        """Whether it is known what is called, and the arguments have begun."""

    def feed(self, char: str) -> None:
        """Raises NotACall at the first character, which is kept, that makes it none."""

    def take(self, broken: bool = False) -> str:
        """The JSON of the arguments since the last time; ``broken`` leaves out the last character
        fed."""

    def rest(self) -> str:
        """The text after the arguments that were taken; all of it if none were."""

    def text(self) -> str:
        """All characters fed."""
