"""Which architectures are written, and what that needs besides what reading them does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from penstock.gguf.writing import NewValue
from penstock.models.blocks import FULL, SLIDING, every
from penstock.models.gguf.names import QKV
from penstock.models.names import Name, fused
from penstock.models.spec import ModelSpec


def _no_keys(spec: ModelSpec) -> Mapping[str, NewValue]:
    return {}


@dataclass(frozen=True)
class WriteRules:
    """What is needed to write files of an architecture, besides its line in the table."""

    keys: Callable[[ModelSpec], Mapping[str, NewValue]] = _no_keys
    """Keys that stand for no single field: the other direction of ``adjust``."""
    names: Mapping[str, Name] = field(default_factory=dict, hash=False)
    """The name that all readers know, of tensors that some know by several."""
    drops_windows: bool = False
    """Whether llama.cpp reads files of this architecture without the windows that some of its
    models have."""


def _window_keys(
    spec: ModelSpec, pattern: int, more: Mapping[str, NewValue] | None = None
) -> Mapping[str, NewValue]:
    """The windows, and which layers have them where these are not all but each n-th."""
    windows = [layer.attention.window for layer in spec.layers]
    sizes = {each for each in windows if isinstance(each, int)}
    values = {} if more is None else dict(more)
    if len(sizes) == 1:
        values["attention.sliding_window"] = sizes.pop()
    kinds = tuple(FULL if each is None else SLIDING for each in windows)
    if kinds != every(pattern, len(windows)):
        said = np.array([each == SLIDING for each in kinds])
        values["attention.sliding_window_pattern"] = said
    return values


def _gemma2(spec: ModelSpec) -> Mapping[str, NewValue]:
    caps = {
        "attn_logit_softcapping": spec.layers[0].attention.softcap or 0.0,
        "final_logit_softcapping": spec.logits_softcap or 0.0,
    }
    return _window_keys(spec, 2, caps)


def _gemma3(spec: ModelSpec) -> Mapping[str, NewValue]:
    more: dict[str, NewValue] = {}
    if spec.logits_softcap is not None:
        more["final_logit_softcapping"] = spec.logits_softcap
    for layer in spec.layers:
        rope = layer.attention.rope
        if layer.attention.window is not None and rope is not None and rope.theta != 10_000.0:
            more["rope.freq_base_swa"] = float(rope.theta)
    return _window_keys(spec, 6, more)


_PLAIN: Final = WriteRules()
WRITTEN: Final[Mapping[str, WriteRules]] = {
    "llama": WriteRules(drops_windows=True),
    "llama with experts": WriteRules(drops_windows=True),
    "gemma": _PLAIN,
    "gemma2": WriteRules(_gemma2),
    "gemma3": WriteRules(_gemma3),
    "granite": _PLAIN,
    "granitemoe": _PLAIN,
    "olmo2": _PLAIN,
    "phi3": WriteRules(names=fused("blk.*.attn_qkv", *QKV), drops_windows=True),
    "qwen2": _PLAIN,
    "qwen2moe": _PLAIN,
    "qwen3": _PLAIN,
    "qwen3moe": _PLAIN,
    "smollm3": _PLAIN,
    "starcoder2": _PLAIN,
}
"""Rules of the architectures that can be written, by their names in the table of architectures.
A file of each has been run in llama.cpp and compared with transformers."""
