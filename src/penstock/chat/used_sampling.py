"""The sampling options that a conversation is answered with, and where each is from."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.chat.conversation import Conversation
from penstock.chat.parameters import ChatParameters
from penstock.json_text import encoded
from penstock.sampling.defaults import SamplingDefaults
from penstock.sampling.params import SamplingParams

_ALWAYS_SHOWN = ("temperature", "top_k", "top_p", "min_p")


class UsedSampling(msgspec.Struct, frozen=True):
    """The options of ``conversation``, asked of a model whose makers recommend ``recommended``.

    What the person sets comes first, then what the makers recommend; where they recommend nothing,
    what every chat begins with. ``recommended`` is None for a server that does not say: it is asked
    for what the person sets alone, and has the choice of the rest.
    """

    conversation: Conversation
    recommended: SamplingDefaults | None

    @property
    def asked(self) -> dict[str, Any]:
        """What a request has to name, by the options' names."""
        given = self.conversation.parameters.given
        return given if self.recommended is None else {**self._begun, **self._seed, **given}

    @property
    def all(self) -> dict[str, Any]:
        """What is asked, and what the makers recommend for the rest."""
        recommended = {} if self.recommended is None else self.recommended.sampled
        return {**recommended, **self.asked}

    @property
    def max_tokens(self) -> int | None:
        """The most tokens of an answer, where the person or the makers name them."""
        recommended = None if self.recommended is None else self.recommended.max_tokens
        return self.conversation.parameters.max_tokens or recommended

    @property
    def header(self) -> str:
        """One clause about a temperature that neither the person nor the makers chose, or ''."""
        if not self._begun or self.conversation.parameters.temperature is not None:
            return ""
        return f"temperature {self._begun['temperature']:g} (the model recommends none)"

    def __str__(self) -> str:
        """Every option that holds, those from one place together."""
        said = [(self.conversation.parameters.given, "set by you")]
        if self.recommended is not None:
            neutral = SamplingParams()
            said += [
                (self._recommended, "the model's"),
                (self._begun, "penstock chat's, as the model recommends none"),
                ({name: getattr(neutral, name) for name in _ALWAYS_SHOWN}, "neutral"),
                (self._seed, "drawn for this conversation"),
            ]
        seen: set[str] = set()
        parts = []
        for values, source in said:
            new = {name: value for name, value in values.items() if name not in seen}
            seen |= set(new)
            if new:
                shown = ", ".join(f"{name} {encoded(value)}" for name, value in new.items())
                parts.append(f"{shown} ({source})")
        if self.recommended is None:
            parts.append("the rest is the server's choice" if parts else "the server's choice")
        return "; ".join(parts)

    @property
    def _begun(self) -> dict[str, Any]:
        return {} if self.recommended is None else self.recommended.interactive.sampled

    @property
    def _recommended(self) -> dict[str, Any]:
        if self.recommended is None:
            return {}
        values = {n: getattr(self.recommended, n, None) for n in ChatParameters.__struct_fields__}
        return {name: value for name, value in values.items() if value is not None}

    @property
    def _seed(self) -> dict[str, Any]:
        drawn, given = self.conversation.drawn_seed, self.conversation.parameters.seed
        return {} if drawn is None or given is not None else {"seed": drawn}
