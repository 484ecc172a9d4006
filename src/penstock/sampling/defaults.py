"""The sampling options that a model's makers recommend, for requests that name none."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.sampling.params import SamplingParams


class SamplingDefaults(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What stands in for options that a request leaves out. None: :class:`SamplingParams`' own."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    repeat_last_n: int | None = None
    max_tokens: int | None = None
    """Unlike a request's own, it gives way where the context has not so much room."""

    @property
    def sampled(self) -> dict[str, Any]:
        """The options that are set, but for ``max_tokens``."""
        return {
            name: value
            for name in self.__struct_fields__
            if name != "max_tokens" and (value := getattr(self, name)) is not None
        }

    def tokens(self, room: int) -> int | None:
        """``max_tokens`` in a context that has ``room`` tokens left; at least 1, so that it is the
        prompt that is refused where there is no room."""
        return None if self.max_tokens is None else max(min(self.max_tokens, room), 1)

    @property
    def interactive(self) -> SamplingDefaults:
        """What a person's conversation begins with in place of the neutral values: nothing where
        the model's makers recommend any of it, and else :data:`INTERACTIVE`."""
        named = any(getattr(self, name) is not None for name in INTERACTIVE.sampled)
        return SamplingDefaults() if named else INTERACTIVE

    def params(self, room: int) -> SamplingParams:
        """The options of a request that names none, where ``room`` tokens of context are left."""
        return SamplingParams(**self.sampled, max_tokens=self.tokens(room))

    def __str__(self) -> str:
        """As ``explain`` shows it."""
        values = {name: getattr(self, name) for name in self.__struct_fields__}
        named = (f"{name} {value:g}" for name, value in values.items() if value is not None)
        return ", ".join(named) or "none"


INTERACTIVE = SamplingDefaults(temperature=0.8, top_k=40, top_p=0.95, min_p=0.05)
"""What ``penstock chat`` and the page begin with where the model's makers recommend nothing: at the
neutral values, which requests of programs get, a small model babbles. llama.cpp has the same."""
