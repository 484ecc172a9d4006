"""The four patterns of queries: short or long prompts, short or long answers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Patterns:
    """Typical sizes of the four patterns, in tokens, and which pattern any request is of.

    A length is long from the geometric mean of both sizes on, so that either size is as many times
    away from it. The defaults are short and long for most servers of today.
    """

    inputs: tuple[int, int] = (128, 2048)
    """Tokens of a short prompt and of a long one."""
    outputs: tuple[int, int] = (32, 512)

    @property
    def long_input_from(self) -> int:
        """The least prompt that counts as long."""
        return math.ceil(math.sqrt(math.prod(self.inputs)))

    @property
    def long_output_from(self) -> int:
        """The least answer that counts as long."""
        return math.ceil(math.sqrt(math.prod(self.outputs)))

    def kinds(self) -> Iterator[tuple[str, int, int]]:
        """Name, prompt and answer of each pattern."""
        for long_input, prompt in enumerate(self.inputs):
            for long_output, output in enumerate(self.outputs):
                yield pattern_name(bool(long_input), bool(long_output)), prompt, output


def pattern_name(long_input: bool, long_output: bool) -> str:
    """What figures call a pattern."""
    return f"{'long' if long_input else 'short'}-in-{'long' if long_output else 'short'}-out"


PATTERNS: Final = Patterns()
