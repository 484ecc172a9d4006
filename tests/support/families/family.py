"""A family of models as tests need it: tiny checkpoints of it, and configurations as published."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class TinyFamily:
    """How transformers makes tiny models of a family, and which of them are compared with it."""

    config: str
    """The name of the configuration's class in transformers."""
    model: str
    """The name of the model's class."""
    cases: Mapping[str, Mapping[str, Any]]
    """Changes of the configuration by the name of the case. The first one is quick to test; the
    others are left to the slow tests."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """What the configuration has besides the fields that families share (``checkpoints.COMMON``),
    or instead of them."""
    lacks: tuple[str, ...] = ()
    """Shared fields that the family does not have."""
    spread: float = 0.2
    """Standard deviation of the weights of norms, and of biases."""
    factors: Mapping[str, float] = field(default_factory=dict)
    """What weights are multiplied by, by what their names end with: where scores of attention are
    large, one key is all that is seen, and roundings grow."""
    buffers: tuple[str, ...] = ()
    """What the names of buffers end with that checkpoints have, as they have weights."""
    attention: str = "eager"
    """Which of transformers' ways to compute attention is compared with."""
    told_positions: bool = False
    """Whether transformers must be told the position of a token behind a cache: left alone, it
    takes 0."""
    served: Mapping[str, Any] = field(default_factory=dict)
    """The changes with which the family is served in a batch."""
    published: Mapping[str, Any] | None = None
    """A ``config.json`` as it is published, with fewer layers."""
    backends: tuple[str, ...] = ("reference", "cpu")


def rope(kind: str, **fields: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, **fields}}


def longrope(**fields: Any) -> dict[str, Any]:
    """Two lists of divisors for the half of each head that rotates."""
    parameters = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.5,
        "short_factor": [1.0, 1.1, 1.2, 1.5],
        "long_factor": [1.0, 2.0, 3.5, 5.0],
    }
    return {"rope_parameters": parameters, **fields}
