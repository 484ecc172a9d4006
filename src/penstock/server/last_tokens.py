"""How many last tokens penalties look at in the dialects of llama-server and Ollama, where a
request does not say it."""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec

from penstock.sampling.defaults import SamplingDefaults
from penstock.server.openai.protocol import Sampling

LAST_TOKENS: Final = 64
"""The default that both document."""

Asked = TypeVar("Asked", bound=Sampling)


def looking_back(asked: Asked, defaults: SamplingDefaults) -> Asked:
    """Return a request whose penalties, where it has any, look at as many tokens as its client
    expects. ``defaults`` are the options of the model's makers, which go first."""
    repetition = asked.repetition_penalty
    if repetition is None:
        repetition = defaults.repetition_penalty
    penalized = repetition not in (None, 1.0) or asked.presence_penalty or asked.frequency_penalty
    said = asked.repeat_last_n is not None or defaults.repeat_last_n is not None
    if said or not penalized:
        return asked
    return msgspec.structs.replace(asked, repeat_last_n=LAST_TOKENS)
