"""The memory that a model takes: weights, keys and values by kind of layer, states, activations."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from penstock.cache.geometry import BLOCK_SIZE, Chunk, Window, sequence_blocks
from penstock.models.mixers_spec import ShortConvSpec
from penstock.models.spec import AttentionSpec, ModelSpec
from penstock.models.state_spec import StateSpec
from penstock.plan.kv_groups import KvLayer
from penstock.plan.memory import plan_memory
from penstock.plan.plan import Plan
from penstock.plan.weight_bytes import weight_bytes


@dataclass(frozen=True)
class KvKind:
    """Layers that keep the same of a token."""

    name: str
    """What they keep, such as ``GQA, 8 KV heads of 128 for 32 heads``."""
    layers: int
    token_bytes: int
    """Bytes of a token in all of these layers together; 0 where they read another layer's, or keep
    a state."""
    window: Window | None
    """What stays of a sequence; None: all of it."""


@dataclass(frozen=True)
class Footprint:
    """Bytes of a plan on the device that runs it: all of a model, or a rank's part of a stage."""

    weights: int
    state_bytes: int
    """What each sequence keeps, whatever its length."""
    activations: int
    """Buffers of the largest step."""
    page_bytes: int
    windows: tuple[Window | None, ...]

    @classmethod
    def of(cls, plan: Plan, step_tokens: int) -> Footprint:
        groups = plan.kv_groups
        logit_rows = min(step_tokens, 256)
        return cls(
            weights=weight_bytes(plan),
            state_bytes=plan.state_bytes(1),
            activations=plan_memory(plan, step_tokens, logit_rows).total_bytes,
            page_bytes=groups.page_bytes,
            windows=groups.windows,
        )

    def sequence_bytes(self, tokens: int) -> int:
        """Bytes that a sequence of so many tokens keeps: whole pages, and its state."""
        return sequence_blocks(self.windows, tokens) * self.page_bytes + self.state_bytes


def kv_kinds(spec: ModelSpec, plan: Plan) -> tuple[KvKind, ...]:
    """Return what the layers of a model keep of a token, by kind."""
    cached = iter(plan.kv_layers)
    counts: Counter[tuple[str, Window | None]] = Counter()
    sizes: Counter[tuple[str, Window | None]] = Counter()
    for mixer in (mixer for layer in spec.layers for mixer in layer.mixers):
        size, window = 0, None
        if isinstance(mixer, AttentionSpec):
            name, window = _attention_name(mixer), mixer.window
            if mixer.kv_from is None:
                size = _token_bytes(next(cached), plan)
        elif isinstance(mixer, ShortConvSpec):
            name, window = f"convolution, rows of {mixer.size}", mixer.kernel
            size = _token_bytes(next(cached), plan)
        else:
            assert isinstance(mixer, StateSpec)
            name = "state of each sequence"
        counts[name, window] += 1
        sizes[name, window] += size
    return tuple(
        KvKind(name, count, sizes[name, window], window) for (name, window), count in counts.items()
    )


def _token_bytes(layer: KvLayer, plan: Plan) -> int:
    return layer.block_bytes(plan.kv_dtype) // BLOCK_SIZE


def _attention_name(spec: AttentionSpec) -> str:
    heads, shared = spec.num_heads, spec.num_kv_heads
    if spec.latent is not None:
        name = f"MLA, latents of {spec.latent.kv_rank} + {spec.latent.rope_dim}"
    elif shared == 1 and heads > 1:
        name = f"MQA, 1 KV head of {spec.head_dim} for {heads} heads"
    elif shared < heads:
        name = f"GQA, {shared} KV heads of {spec.head_dim} for {heads} heads"
    else:
        name = f"MHA, {heads} heads of {spec.head_dim}"
    if isinstance(spec.window, Chunk):
        name += f", chunks of {spec.window.size:,}"
    elif spec.window is not None:
        name += f", window of {spec.window:,}"
    return name if spec.kv_from is None else f"{name}, reading another layer's"
