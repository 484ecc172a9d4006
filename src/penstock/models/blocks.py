"""What the Llama-shaped families share: field by field, from a configuration to a ModelSpec."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, cast

from penstock.models.limits import (
    MAX_EPS,
    MAX_HEAD_DIM,
    MAX_HEADS,
    MAX_HEADS_WIDTH,
    MAX_HIDDEN,
    MAX_INTERMEDIATE,
    MAX_LAYERS,
    MAX_POSITIONS,
    MAX_VOCAB,
    MIN_EPS,
)
from penstock.models.reader import ConfigReader
from penstock.models.rope_config import LLAMA_FIELDS, RopeFields, extended_positions, read_rope
from penstock.models.spec import (
    Activation,
    AttentionSpec,
    DType,
    LayerSpec,
    MlpSpec,
    ModelSpec,
    NormKind,
    NormSpec,
    QkNormSpec,
    RopeSpec,
)

FULL, SLIDING = "full_attention", "sliding_attention"


_ACTIVATIONS: Final[dict[str, Activation]] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "relu2": "relu2",
}
_DTYPES: Final = ("float32", "bfloat16", "float16")


def read_dtype(config: ConfigReader) -> DType | None:
    """The checkpoint's dtype (``dtype``, once ``torch_dtype``); None where unnamed."""
    names = {config.text(key) for key in ("dtype", "torch_dtype") if config.has(key)}
    config.raw("dtype"), config.raw("torch_dtype")
    if not names:
        return None
    key = "dtype" if config.has("dtype") else "torch_dtype"
    if len(names) > 1:
        raise config.error("dtype", f"contradicts torch_dtype {config.raw('torch_dtype')!r}")
    name = names.pop().removeprefix("torch.")
    if name not in _DTYPES:
        raise config.error(key, f"is not supported; supported are {', '.join(_DTYPES)}")
    return cast(DType, name)


def read_decoder(
    config: ConfigReader,
    architecture: str,
    dtype: DType,
    *,
    head_dim: int,
    num_kv_heads: int,
    windows: Sequence[int | None],
    qkv_bias: bool = False,
    output_bias: bool = False,
    mlp_bias: bool = False,
    gated: bool = True,
    qk_norm: bool = False,
    rope: RopeSpec | None = None,
    norm: NormSpec | None = None,
    mlp: MlpSpec | None = None,
    rope_fields: RopeFields = LLAMA_FIELDS,
) -> ModelSpec:
    """A decoder of identical Llama-shaped layers but for ``windows``, one per layer.

    ``norm``, whose epsilon queries and keys have too, ``rope`` and ``mlp`` are read as Llama has
    them where they are not given, ``rope`` by the family's ``rope_fields``.
    """
    attention = read_attention(config, head_dim, num_kv_heads)
    positions = read_positions(config)
    norm = norm or read_norm(config)
    rope = rope or read_rope(config, head_dim, positions, rope_fields)
    attention = replace(
        attention,
        rope=rope,
        qkv_bias=qkv_bias,
        output_bias=output_bias,
        qk_norm=QkNormSpec(norm.eps) if qk_norm else None,
    )
    mlp = mlp or read_mlp(config, bias=mlp_bias, gated=gated)
    return read_model(
        config,
        architecture,
        dtype,
        layers=[
            LayerSpec(replace(attention, window=window), mlp, attn_norm=norm, mlp_norm=norm)
            for window in windows
        ],
        final_norm=norm,
        max_positions=extended_positions(rope, positions),
    )


def read_model(
    config: ConfigReader,
    architecture: str,
    dtype: DType,
    *,
    layers: Sequence[LayerSpec],
    final_norm: NormSpec,
    max_positions: int,
    tie_embeddings: bool = False,
) -> ModelSpec:
    """A model of these layers. ``tie_embeddings`` is meant where the configuration is silent."""
    vocab = config.integer("vocab_size", high=MAX_VOCAB)
    return ModelSpec(
        architecture=architecture,
        vocab_size=vocab,
        hidden_size=config.integer("hidden_size", high=MAX_HIDDEN),
        layers=tuple(layers),
        final_norm=final_norm,
        tie_embeddings=config.boolean("tie_word_embeddings", tie_embeddings),
        max_positions=max_positions,
        dtype=dtype,
        bos_token_id=config.optional_integer("bos_token_id", low=0, high=vocab - 1),
        eos_token_ids=config.integers("eos_token_id", high=vocab - 1),
    )


def read_attention(config: ConfigReader, head_dim: int, num_kv_heads: int) -> AttentionSpec:
    """Attention to all tokens before, without rotation, biases, norms or caps."""
    heads = config.integer("num_attention_heads", high=MAX_HEADS)
    if heads % num_kv_heads:
        raise config.error(
            "num_attention_heads", f"must be a multiple of the {num_kv_heads} KV heads"
        )
    if head_dim % 2:
        raise config.error("head_dim", f"must be even, and the heads have {head_dim} components")
    if heads * head_dim > MAX_HEADS_WIDTH:
        raise config.error(
            "num_attention_heads",
            f"times the {head_dim} components of a head must be at most {MAX_HEADS_WIDTH}",
        )
    return AttentionSpec(heads, num_kv_heads, head_dim, None, scale=head_dim**-0.5)


def read_mlp(
    config: ConfigReader,
    *,
    bias: bool = False,
    gated: bool = True,
    activation: str = "hidden_act",
    default: str = "silu",
) -> MlpSpec:
    """The MLP of ``intermediate_size``; ``activation`` names the field of its activation."""
    return MlpSpec(
        config.integer("intermediate_size", high=MAX_INTERMEDIATE),
        read_activation(config, activation, default),
        bias,
        gated,
    )


def read_activation(
    config: ConfigReader, name: str = "hidden_act", default: str = "silu"
) -> Activation:
    act = config.text(name, default)
    if act not in _ACTIVATIONS:
        raise config.error(name, f"is not supported; supported are {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[act]


def read_norm(
    config: ConfigReader, name: str = "rms_norm_eps", kind: NormKind = "rms", bias: bool = False
) -> NormSpec:
    """The norm whose epsilon is field ``name``."""
    return NormSpec(config.number(name, low=MIN_EPS, high=MAX_EPS), kind, bias)


def read_positions(config: ConfigReader) -> int:
    return config.integer("max_position_embeddings", high=MAX_POSITIONS)


def read_kv_heads(config: ConfigReader) -> int:
    """``num_key_value_heads``, or as many as there are heads."""
    heads = config.integer("num_attention_heads", high=MAX_HEADS)
    return config.optional_integer("num_key_value_heads") or heads


def read_num_layers(config: ConfigReader) -> int:
    return config.integer("num_hidden_layers", high=MAX_LAYERS)


def default_head_dim(config: ConfigReader) -> int:
    """``head_dim``, or the hidden size shared out among the heads."""
    head_dim = config.optional_integer("head_dim", high=MAX_HEAD_DIM)
    if head_dim is not None:
        return head_dim
    hidden = config.integer("hidden_size", high=MAX_HIDDEN)
    heads = config.integer("num_attention_heads", high=MAX_HEADS)
    if hidden % heads:
        raise config.error(
            "hidden_size", f"is not a multiple of the {heads} heads, and no head_dim is given"
        )
    if hidden // heads > MAX_HEAD_DIM:
        raise config.error(
            "hidden_size", f"shared out among {heads} heads gives each more than {MAX_HEAD_DIM}"
        )
    return hidden // heads


def uniform_windows(config: ConfigReader, window: int | None) -> tuple[int | None, ...]:
    """The same window for every layer; a ``layer_types`` that says otherwise is refused."""
    layers = read_num_layers(config)
    types = config.texts("layer_types")
    expected = SLIDING if window is not None else FULL
    if types is not None and types != (expected,) * layers:
        raise config.error("layer_types", f"must be {expected!r} for each of the {layers} layers")
    return (window,) * layers


def every(interval: int, layers: int) -> tuple[str, ...]:
    """The kinds of layers of which each ``interval``-th has no window."""
    return tuple(SLIDING if (i + 1) % interval else FULL for i in range(layers))


def read_layer_kinds(config: ConfigReader, default: Sequence[str]) -> tuple[str, ...]:
    """Which layers have a window: ``layer_types``, or ``default`` where it is absent."""
    layers = read_num_layers(config)
    types = config.texts("layer_types")
    if types is None:
        return tuple(default)
    if len(types) != layers or not set(types) <= {FULL, SLIDING}:
        raise config.error("layer_types", f"must be {layers} times {FULL!r} or {SLIDING!r}")
    return types


def read_rotating(config: ConfigReader) -> tuple[bool, ...]:
    """Which layers rotate: ``no_rope_layers``, which has 1 where they do, else by an interval."""
    layers, rotates = read_num_layers(config), config.integers("no_rope_layers", high=1)
    interval = config.integer("no_rope_layer_interval", 4)
    if not rotates:
        return tuple((i + 1) % interval != 0 for i in range(layers))
    if len(rotates) < layers:
        raise config.error("no_rope_layers", f"must have a number for each of {layers} layers")
    return tuple(each == 1 for each in rotates[:layers])


def windows_of(kinds: Sequence[str], window: int | None) -> tuple[int | None, ...]:
    """The window of each layer of these kinds."""
    return tuple(window if kind == SLIDING else None for kind in kinds)


def with_attention(model: ModelSpec, attention: Sequence[AttentionSpec]) -> ModelSpec:
    """The model with other attention, layer by layer."""
    pairs = zip(model.layers, attention, strict=True)
    layers = tuple(replace(layer, mixer=each) for layer, each in pairs)
    return replace(model, layers=layers)


def qwen_windows(config: ConfigReader) -> tuple[int | None, ...]:
    """Sliding windows by ``layer_types``, else from layer ``max_window_layers`` on."""
    layers = read_num_layers(config)
    sliding = config.boolean("use_sliding_window", False)
    size = config.optional_integer("sliding_window")
    first = config.integer("max_window_layers", layers, low=0)
    types = config.texts("layer_types")
    if sliding and size is None:
        raise config.error("sliding_window", "must be given where use_sliding_window is true")
    if types is None:
        if sliding and not config.has("max_window_layers"):
            raise config.error(
                "max_window_layers", "must be given (or layer_types) with use_sliding_window"
            )
        return tuple(size if sliding and i >= first else None for i in range(layers))
    if len(types) != layers or not set(types) <= {FULL, SLIDING}:
        raise config.error("layer_types", f"must be {layers} times {FULL!r} or {SLIDING!r}")
    if SLIDING in types and not sliding:
        raise config.error("layer_types", f"has {SLIDING!r}, but use_sliding_window is false")
    return tuple(size if kind == SLIDING else None for kind in types)
