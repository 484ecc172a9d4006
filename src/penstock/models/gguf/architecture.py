"""What differs between the architectures of GGUF files, as data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from penstock.gguf.writing import NewValue
from penstock.models.gguf.keys import Keys
from penstock.models.names import Name
from penstock.models.spec import ModelSpec

Fields = dict[str, object]
"""The fields of a ``config.json``."""

COMMON: Final[Mapping[str, str]] = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "max_position_embeddings": "context_length",
    "head_dim": "attention.key_length",
    "rope_theta": "rope.freq_base",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
}
"""The fields of most families, and the keys that have their values."""


def _no_keys(spec: ModelSpec) -> Mapping[str, NewValue]:
    return {}


@dataclass(frozen=True)
class WriteRules:
    """What is needed to write files of an architecture, besides what is needed to read them."""

    keys: Callable[[ModelSpec], Mapping[str, NewValue]] = _no_keys
    """Keys that stand for no single field, the other direction of ``adjust``."""
    names: Mapping[str, Name] = field(default_factory=dict, hash=False)
    """The names of tensors of which readers know several, as all of them know it."""
    drops_windows: bool = False
    """Whether llama.cpp reads files of this architecture without the windows that some of its
    models have."""


@dataclass(frozen=True)
class Architecture:
    """How files of one ``general.architecture`` say what a family's ``config.json`` says."""

    family: str
    """The name in ``architectures`` of the family that computes it."""
    fields: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Keys of fields beside the common ones, or in place of theirs."""
    without: frozenset[str] = frozenset()
    """Common fields that the family does not have."""
    fixed: Mapping[str, object] = field(default_factory=dict, hash=False)
    """Fields that are the same in all files."""
    otherwise: Mapping[str, object] = field(default_factory=dict, hash=False)
    """What fields are whose keys are absent."""
    present: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Fields that are true where the file has a tensor."""
    partial: str | None = None
    """The field of how much of a head rotates; None: it rotates as a whole."""
    rotates: bool = True
    """Whether there is a rotary embedding."""
    adjust: Callable[[Keys, Fields], None] = lambda keys, fields: None
    """Completes the fields by keys that need more than a name."""
    names: Callable[[ModelSpec], Mapping[str, Name]] = lambda spec: {}
    """Names that are not the general ones."""
    idle_keys: frozenset[str] = frozenset()
    """Keys that change nothing, or say again what others do."""
    idle: str = r"(?!)"
    """Regular expression of tensors that nothing reads."""
    writing: WriteRules | None = None
    """None: Penstock writes no such files."""


def without(*names: str) -> frozenset[str]:
    """Some of the common fields."""
    assert set(names) <= set(COMMON)
    return frozenset(names)
