"""How long clients want their prompts to stay on disk, in the words of each dialect."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec

from penstock.interface.messages import RequestOptions
from penstock.kvstore.kept_blocks import MOST_KEPT_S
from penstock.server.errors import ApiError
from penstock.server.fields.check import Advice

if TYPE_CHECKING:
    from penstock.server.engine import Engine

FIELD: Final = "cache_keep_s"
"""The field of all dialects in which prompts may be kept."""
KeepSeconds = Annotated[float, msgspec.Meta(ge=0, le=MOST_KEPT_S)]

_DEFAULT_TTL: Final = "5m"
_TTLS: Final = {"5m": 300.0, "1h": 3600.0}
"""Anthropic's, by what ``cache_control.ttl`` says."""
_RETENTIONS: Final = {"24h": MOST_KEPT_S}
"""OpenAI's, by what ``prompt_cache_retention`` says; others are of memory."""


def heeded(advice: list[Advice], given: dict[str, Any]) -> list[Advice]:
    """Follow the advice that says for how long a prompt is to stay, of several the longest; returns
    the rest. What the field itself says is left as it is."""
    rest, longest = [], 0.0
    for each in advice:
        seconds = _seconds(each)
        if seconds is None:
            rest.append(each)
        else:
            longest = max(longest, seconds)
    if longest:
        given.setdefault(FIELD, longest)
    return rest


def kept(options: RequestOptions, seconds: float | None, engine: Engine) -> RequestOptions:
    """The options of a request whose prompt is to stay for so long. Raises ApiError where nothing
    stays."""
    if not seconds:
        return options
    if engine.model.block_place is None:
        raise ApiError(
            400,
            f"{FIELD}: the server keeps nothing on disk; leave it out, or have the server started "
            "with --kv-disk",
            param=FIELD,
        )
    return msgspec.structs.replace(options, keep_s=seconds)


def _seconds(advice: Advice) -> float | None:
    """The time that a value means; None where it means none."""
    name, value = advice.rule.path[-1], advice.value
    if name == "prompt_cache_retention" and isinstance(value, str):
        return _RETENTIONS.get(value)
    if name == "cache_control" and isinstance(value, dict) and value.get("type") == "ephemeral":
        ttl = value.get("ttl", _DEFAULT_TTL)
        return _TTLS.get(ttl) if isinstance(ttl, str) else None
    return None
