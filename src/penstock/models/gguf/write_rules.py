"""Which architectures are written, and what that needs besides what reading them does."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from penstock.gguf.writing import NewValue
from penstock.models.blocks import FULL, SLIDING, every
from penstock.models.gguf.names import QKV
from penstock.models.gguf.parts import LAYER_NORM, SIGMOID, SOFTMAX
from penstock.models.gguf.values import first_experts, first_mlp
from penstock.models.names import Name, fused
from penstock.models.spec import GatedDeltaSpec, ModelSpec, attention_of


def _no_keys(spec: ModelSpec) -> Mapping[str, NewValue]:
    return {}


@dataclass(frozen=True)
class WriteRules:
    """What is needed to write files of an architecture, besides its line in the table."""

    keys: Callable[[ModelSpec], Mapping[str, NewValue]] = _no_keys
    """Keys that stand for no single field: the other direction of ``adjust``."""
    names: Mapping[str, Name] = field(default_factory=dict, hash=False)
    """The name that all readers know, of tensors that some know by several."""
    families: frozenset[str] = frozenset()
    """Families that files of this architecture are read as, besides that in the table."""
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


def _windows(pattern: int) -> Callable[[ModelSpec], Mapping[str, NewValue]]:
    return lambda spec: _window_keys(spec, pattern)


def _exaone4(spec: ModelSpec) -> Mapping[str, NewValue]:
    windows = any(layer.attention.window is not None for layer in spec.layers)
    return _window_keys(spec, 4) if windows else {}


def _olmo2(spec: ModelSpec) -> Mapping[str, NewValue]:
    """Those of OLMo 3, where layers have windows."""
    if all(layer.attention.window is None for layer in spec.layers):
        return {}
    local = next(each.attention for each in spec.layers if each.attention.window is not None)
    base = 0.0 if local.rope is None else float(local.rope.theta)
    return _window_keys(spec, 4, {"rope.freq_base_swa": base})


def _sigmoid(spec: ModelSpec) -> Mapping[str, NewValue]:
    return {"expert_gating_func": SIGMOID}


def _ernie_moe(spec: ModelSpec) -> Mapping[str, NewValue]:
    experts = first_experts(spec)
    shared = None if experts is None else experts.shared
    return {} if shared is None else {_SHARED: shared.intermediate_size}


def _olmo(spec: ModelSpec) -> Mapping[str, NewValue]:
    eps = 1e-5 if spec.final_norm is None else spec.final_norm.eps
    return {LAYER_NORM: eps}


def _deepseek(spec: ModelSpec) -> Mapping[str, NewValue]:
    attention = spec.layers[0].attention
    latent = attention.latent
    if latent is None:
        return {}
    size = latent.nope_dim + latent.rope_dim
    values: dict[str, NewValue] = {
        "attention.key_length": latent.key_dim,
        "attention.value_length": latent.kv_rank,
        "attention.key_length_mla": size,
        "attention.value_length_mla": latent.v_dim,
        "attention.head_count_kv": 1,
        "rope.dimension_count": latent.rope_dim,
    }
    experts = first_experts(spec)
    scores = "sigmoid" if experts is None else experts.routing.scores
    values["expert_gating_func"] = SIGMOID if scores == "sigmoid" else SOFTMAX
    rope = attention.rope
    if rope is not None and rope.kind == "yarn" and rope.factor > 1:
        # Scores are larger by the square of 1 + weight * ln(factor).
        larger = math.sqrt(max(attention.scale * math.sqrt(size), 1.0))
        weight = (larger - 1.0) / math.log(rope.factor)
        values["rope.scaling.yarn_log_multiplier"] = round(weight, 6)
    mlp = first_mlp(spec)
    if mlp is not None:
        values["feed_forward_length"] = mlp.intermediate_size
    return values


def _net(spec: ModelSpec) -> Mapping[str, NewValue]:
    nets = [isinstance(layer.mixer, GatedDeltaSpec) for layer in spec.layers]
    net = next(e.mixer for e in spec.layers if isinstance(e.mixer, GatedDeltaSpec))
    values: dict[str, NewValue] = {"ssm.inner_size": net.value_size}
    interval = next((i + 1 for i, each in enumerate(nets) if not each), len(nets) + 1)
    values["full_attention_interval"] = interval
    return values


def _short_conv(spec: ModelSpec) -> Mapping[str, NewValue]:
    """The KV heads of each layer, of which those that do not attend have none."""
    found = [attention_of(layer) for layer in spec.layers]
    heads = [0 if each is None else each.num_kv_heads for each in found]
    return {"attention.head_count_kv": np.array(heads, np.int32)}


def _lfm2_moe(spec: ModelSpec) -> Mapping[str, NewValue]:
    mlp = first_mlp(spec)
    dense = {} if mlp is None else {"feed_forward_length": mlp.intermediate_size}
    return {**_short_conv(spec), **_sigmoid(spec), **dense}


_SHARED: Final = "expert_shared_feed_forward_length"
_JOINED: Final = fused("blk.*.attn_qkv", *QKV)
_PLAIN: Final = WriteRules()
_NAMED: Final = WriteRules(names=_JOINED)
WRITTEN: Final[Mapping[str, WriteRules]] = {
    "llama": WriteRules(drops_windows=True),
    "llama with experts": WriteRules(drops_windows=True),
    "arcee": _PLAIN,
    "cohere2": WriteRules(_windows(4)),
    "command-r": _PLAIN,
    "deepseek2": WriteRules(
        _deepseek,
        families=frozenset({"DeepseekV3ForCausalLM", "Glm4MoeLiteForCausalLM"}),
    ),
    "dots1": WriteRules(_sigmoid),
    "ernie4_5": _PLAIN,
    "ernie4_5-moe": WriteRules(_ernie_moe),
    "exaone4": WriteRules(_exaone4),
    "gemma": _PLAIN,
    "gemma2": WriteRules(_gemma2),
    "gemma3": WriteRules(_gemma3),
    "glm4": _PLAIN,
    "glm4moe": WriteRules(_sigmoid),
    "gpt-oss": WriteRules(_windows(2)),
    "gpt2": _NAMED,
    "gptneox": _NAMED,
    "granite": _PLAIN,
    "granitemoe": _PLAIN,
    "hunyuan-dense": _PLAIN,
    "lfm2": WriteRules(_short_conv),
    "lfm2moe": WriteRules(_lfm2_moe),
    "llama4": _PLAIN,
    "minimax-m2": WriteRules(_sigmoid),
    "nemotron": _PLAIN,
    "olmo": WriteRules(_olmo),
    "olmo2": WriteRules(_olmo2, families=frozenset({"Olmo3ForCausalLM"})),
    "olmoe": _PLAIN,
    "phi2": _PLAIN,
    "phi3": WriteRules(names=_JOINED, drops_windows=True),
    "qwen2": _PLAIN,
    "qwen2moe": _PLAIN,
    "qwen3": _PLAIN,
    "qwen3moe": _PLAIN,
    "qwen3next": WriteRules(_net),
    "seed_oss": _PLAIN,
    "smollm3": _PLAIN,
    "stablelm": _PLAIN,
    "starcoder2": _PLAIN,
}
"""Rules of the architectures that can be written, by their names in the table of architectures.
A file of each has been run in llama.cpp and compared with transformers."""
