"""How long requests may be."""

from __future__ import annotations

import msgspec


class LengthLimits(msgspec.Struct, frozen=True):
    """The most tokens that requests of an engine may have."""

    max_model_len: int
    """Tokens of prompt and answer together: the context."""
    max_input_len: int | None = None
    """Tokens of a prompt; None: as many as the context holds."""
    max_output_len: int | None = None
    """Tokens of an answer; None: as many as the context has left."""
    origin: str = "set at this start"
    """Where the bounds of prompts and answers come from, for messages."""

    @property
    def bounded(self) -> bool:
        """Whether prompts and answers are both bounded: then how much a request can need is known,
        and no more run than surely fit."""
        return self.max_input_len is not None and self.max_output_len is not None

    @property
    def longest_input(self) -> int:
        """Tokens of a prompt that asks for no answer."""
        return min(self.max_model_len, self.max_input_len or self.max_model_len)

    @property
    def longest_prompt(self) -> int:
        """Tokens of a prompt that leaves room for one of an answer."""
        return min(self.max_model_len - 1, self.longest_input)

    def room(self, prompt: int) -> int:
        """Tokens of the longest answer to a prompt; 0 or less where the prompt is too long."""
        left = self.max_model_len - prompt
        return min(left, self.max_output_len or left)

    @property
    def longest_output(self) -> int:
        """Tokens of the longest answer to the shortest prompt."""
        return self.room(1)
