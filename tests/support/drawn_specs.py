"""Models of every combination of what a layer may be declared to be, drawn at random."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from penstock.models.spec import (
    AttentionSpec,
    EmbeddingScale,
    ExpertsSpec,
    LayerSpec,
    MlpSpec,
    ModelSpec,
    NormSpec,
    QkNormSpec,
    RopeSpec,
)
from penstock.plan.plan import Plan

NORMS = st.one_of(
    st.builds(NormSpec, eps=st.just(1e-5), weight=st.booleans()),
    st.builds(
        NormSpec,
        eps=st.just(1e-6),
        kind=st.just("layer"),
        bias=st.booleans(),
        weight=st.booleans(),
    ),
)
ACTIVATIONS = st.sampled_from(["silu", "gelu", "gelu_tanh", "relu", "relu2"])
MLPS = st.builds(
    MlpSpec,
    intermediate_size=st.sampled_from([20, 33]),
    activation=ACTIVATIONS,
    bias=st.booleans(),
    gated=st.booleans(),
)
EXPERTS = st.integers(1, 4).flatmap(
    lambda top_k: st.builds(
        ExpertsSpec,
        num_experts=st.integers(top_k, 6),
        top_k=st.just(top_k),
        intermediate_size=st.just(18),
        activation=ACTIVATIONS,
        scores=st.sampled_from(["all", "chosen"]),
        normalize=st.booleans(),
    )
)


def attentions(heads: int, kv_heads: int, dim: int) -> st.SearchStrategy[AttentionSpec]:
    ropes = st.builds(
        RopeSpec,
        theta=st.sampled_from([100.0, 10000.0]),
        dim=st.sampled_from([dim, dim // 2]),
        interleaved=st.booleans(),
    )
    return st.builds(
        AttentionSpec,
        num_heads=st.just(heads),
        num_kv_heads=st.just(kv_heads),
        head_dim=st.just(dim),
        rope=st.none() | ropes,
        scale=st.sampled_from([dim**-0.5, 0.4]),
        window=st.sampled_from([None, None, 5]),
        qkv_bias=st.sampled_from([False, True, ("q",), ("q", "v"), ("k",)]),
        output_bias=st.booleans(),
        qk_norm=st.none()
        | st.builds(QkNormSpec, st.just(1e-5), st.sampled_from(["head", "projection"])),
        alibi=st.booleans(),
        softcap=st.sampled_from([None, 3.0]),
        sinks=st.booleans(),
    )


@st.composite
def specs(draw: st.DrawFn, experts: bool = True, max_layers: int = 3) -> ModelSpec:
    """Models of up to ``max_layers`` layers; ``experts``: of which some may be mixtures."""
    heads, kv_heads = draw(st.sampled_from([(4, 2), (2, 2), (4, 1)]))
    dim = draw(st.sampled_from([8, 12]))
    layers: list[LayerSpec] = []
    for _ in range(draw(st.integers(1, max_layers))):
        attention = draw(attentions(heads, kv_heads, dim))
        sources = [i for i, layer in enumerate(layers) if layer.attention.kv_from is None]
        if sources and draw(st.sampled_from([False, True])):
            source = draw(st.sampled_from(sources))
            window = layers[source].attention.window
            attention = replace(attention, kv_from=source, window=window)
        optional = st.none() | NORMS
        layers.append(
            LayerSpec(
                attention,
                draw(MLPS | EXPERTS if experts else MLPS),
                attn_norm=draw(optional),
                mlp_norm=draw(optional),
                attn_post_norm=draw(optional),
                mlp_post_norm=draw(optional),
                parallel=draw(st.booleans()),
                residual_scale=draw(st.sampled_from([1.0, 0.5])),
            )
        )
    return ModelSpec(
        architecture="DrawnForCausalLM",
        vocab_size=211,
        hidden_size=24,
        layers=tuple(layers),
        final_norm=draw(st.none() | NORMS),
        tie_embeddings=draw(st.booleans()),
        max_positions=64,
        dtype="float32",
        embedding_scale=draw(st.sampled_from([None, EmbeddingScale(1.7)])),
        logits_scale=draw(st.sampled_from([1.0, 0.25])),
        logits_softcap=draw(st.sampled_from([None, 2.0])),
        head_bias=draw(st.booleans()),
    )


class TameWeights:
    """A WeightSource of a plan's weights, so small that models without norms do not blow up."""

    def __init__(self, plan: Plan) -> None:
        self._weights = plan.weights

    def names(self) -> Iterable[str]:
        return self._weights

    def get(self, name: str) -> NDArray[Any]:
        """The weight, or a rank's rows of one."""
        weight = self._weights[name]
        if weight.share is not None:
            return self._whole(weight.share.name, weight.share.shape)[slice(*weight.share.rows)]
        return self._whole(name, weight.shape)

    @staticmethod
    def _whole(name: str, shape: tuple[int, ...]) -> NDArray[Any]:
        values = np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape)
        if len(shape) > 1:
            values /= np.sqrt(shape[-1])
        elif not name.endswith(("bias", "sinks")):
            values = 1 + values / 10
        return values.astype(np.float32)
