"""Models of every combination of what a layer may be declared to be, drawn at random."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from hypothesis import strategies as st

from penstock.models.experts_spec import Scores
from penstock.models.spec import (
    Activation,
    AlibiSpec,
    AttentionSpec,
    Chunk,
    ClampedSwiglu,
    ClampSpec,
    EmbeddingScale,
    ExpertNorms,
    ExpertsSpec,
    GatedDeltaSpec,
    Gating,
    LatentSpec,
    LayerSpec,
    Mixer,
    MixerSum,
    MlpSpec,
    ModelSpec,
    NormSpec,
    PositionScale,
    PositionTable,
    QkNormSpec,
    RopeSpec,
    Routing,
    SelectiveSpec,
    SharedExpertSpec,
    ShortConvSpec,
    StateSpec,
    TokenInputsSpec,
    attention_of,
)

HIDDEN = 24

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
ACTIVATION_NAMES: tuple[Activation, ...] = (
    "silu",
    "gelu",
    "gelu_tanh",
    "relu",
    "relu2",
    "sigmoid",
    "identity",
)
ACTIVATIONS = st.sampled_from(ACTIVATION_NAMES)
MLPS = (
    st.builds(
        MlpSpec,
        intermediate_size=st.sampled_from([20, 33]),
        activation=ACTIVATIONS,
        bias=st.booleans(),
        gated=st.just(False),
        output_factor=st.sampled_from([1.0, 0.7]),
    )
    | st.builds(
        MlpSpec,
        intermediate_size=st.sampled_from([20, 33]),
        activation=ACTIVATIONS,
        bias=st.booleans(),
        gate_factor=st.sampled_from([1.0, 1.0, 1.3]),
    )
    | st.builds(
        MlpSpec,
        intermediate_size=st.sampled_from([20, 33]),
        bias=st.booleans(),
        activation=st.just("xielu"),
        gated=st.just(False),
    )
)
CLAMPED: st.SearchStrategy[Gating] = st.just(ClampedSwiglu(limit=0.8, alpha=1.7))
GATINGS = ACTIVATIONS | CLAMPED
KINDS: tuple[Scores, ...] = ("softmax", "softmax_chosen", "sigmoid", "sparsemixer")
SCORES = st.sampled_from(KINDS)
SHARED = st.builds(
    SharedExpertSpec,
    intermediate_size=st.sampled_from([12, 21]),
    bias=st.booleans(),
    gated=st.booleans(),
)


QK_NORMS = st.builds(
    QkNormSpec,
    eps=st.just(1e-5),
    weight=st.booleans(),
    after_rope=st.booleans(),
).flatmap(
    lambda norm: st.sampled_from(
        [
            norm,
            replace(norm, over="projection"),
            replace(norm, each_head=True),
            replace(norm, kind="layer"),
            replace(norm, kind="layer", bias=True),
            replace(norm, kind="layer", bias=True, each_head=True),
            replace(norm, kind="layer", over="projection", bias=True),
        ]
    )
)


@st.composite
def mixtures(draw: st.DrawFn) -> ExpertsSpec:
    """Mixtures of up to 8 experts, in up to 4 groups."""
    groups, size = draw(st.sampled_from([(1, 1), (1, 5), (1, 6), (2, 3), (4, 2)]))
    scores = draw(SCORES)
    plain = scores == "sparsemixer"
    if plain:
        groups, size = 1, groups * size
    chosen = draw(st.integers(1, groups))
    routing = Routing(
        scores=scores,
        normalize=draw(st.booleans()),
        normalize_eps=draw(st.sampled_from([0.0, 0.25])),
        normalize_least=draw(st.sampled_from([0.0, 0.6])),
        scale=draw(st.sampled_from([1.0, 2.5])),
        groups=groups,
        groups_chosen=chosen,
        group_score=draw(st.sampled_from(["max", "top2"])),
        bias=draw(st.booleans()),
        choice_bias=not plain and draw(st.booleans()),
        share_scale=draw(st.booleans()),
        jitter=0.3 if plain else 0.0,
    )
    shared = draw(st.none() | SHARED)
    norms = st.none() if shared is None else st.sampled_from([None, ExpertNorms(1e-5, 0.4)])
    gates = draw(st.booleans())
    return ExpertsSpec(
        num_experts=groups * size,
        top_k=draw(st.integers(1, min(4, chosen * size))),
        intermediate_size=18,
        activation=draw(GATINGS if gates else ACTIVATIONS),
        routing=routing,
        shared=shared,
        norms=draw(norms),
        bias=draw(st.booleans()),
        shares_on=draw(st.sampled_from(["outputs", "inputs"])),
        gates=gates,
        latent=draw(st.sampled_from([None, None, 13])),
        latent_bias=draw(st.booleans()),
    )


SCANS = st.builds(
    SelectiveSpec,
    heads=st.just(4),
    head_dim=st.sampled_from([5, 16, 20]),
    groups=st.sampled_from([1, 2]),
    state=st.sampled_from([3, 16]),
    kernel=st.sampled_from([3, 4]),
    eps=st.sampled_from([1e-5, None]),
    conv_bias=st.booleans(),
    bias=st.booleans(),
    output_bias=st.booleans(),
    gate_first=st.booleans(),
    z_factor=st.sampled_from([1.0, 0.6]),
    dt_factor=st.sampled_from([1.0, 1.4]),
    dt_limits=st.sampled_from([(0.0, math.inf), (0.4, 0.9)]),
)


TOKEN_INPUTS = st.builds(
    TokenInputsSpec,
    size=st.sampled_from([6, 17]),
    vocab_size=st.sampled_from([211, 220]),
    activation=ACTIVATIONS,
    eps=st.just(1e-5),
    factor=st.just(2.5),
    projection_scale=st.just(0.3),
    scale=st.just(0.7),
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
        window=st.sampled_from([None, None, 5, Chunk(1), Chunk(7), Chunk(32)]),
        qkv_bias=st.sampled_from([False, True, ("q",), ("q", "v"), ("k",)]),
        output_bias=st.booleans(),
        qk_norm=st.none() | QK_NORMS,
        alibi=st.none() | st.builds(AlibiSpec, st.sampled_from([1.0, 0.3]), st.booleans()),
        softcap=st.sampled_from([None, 3.0]),
        sinks=st.booleans(),
        key_is_value=st.booleans(),
        clamp=st.sampled_from([None, None, ClampSpec(0.6)]),
        v_norm=st.none() | NORMS,
        output_gate=st.booleans(),
        position_scale=st.none()
        | st.builds(
            PositionScale, st.just(0.5), st.sampled_from([1, 7, 16]), st.sampled_from([0, 1, 6])
        ),
    ).flatmap(_with_clamps_behind_norms)


def _with_clamps_behind_norms(a: AttentionSpec) -> st.SearchStrategy[AttentionSpec]:
    if a.clamp is None or a.qk_norm is None or a.qk_norm.after_rope:
        return st.just(a)
    behind = replace(a.clamp, behind_norms=True)
    return st.sampled_from([a, replace(a, clamp=behind)])


def latents(heads: int) -> st.SearchStrategy[AttentionSpec]:
    """Attention over latents, whose sizes divide nothing."""
    latent = st.builds(
        LatentSpec,
        kv_rank=st.just(11),
        nope_dim=st.just(6),
        rope_dim=st.just(4),
        v_dim=st.just(5),
        q_rank=st.sampled_from([None, 7]),
        eps=st.just(1e-4),
        bias=st.booleans(),
    )
    ropes = st.builds(
        RopeSpec, theta=st.just(100.0), dim=st.sampled_from([4, 2]), interleaved=st.booleans()
    )
    return st.builds(
        AttentionSpec,
        num_heads=st.just(heads),
        num_kv_heads=st.just(1),
        head_dim=st.just(15),
        rope=st.none() | ropes,
        scale=st.just(10**-0.5),
        window=st.sampled_from([None, None, 5]),
        output_bias=st.booleans(),
        softcap=st.sampled_from([None, 3.0]),
        sinks=st.booleans(),
        latent=latent,
    )


NETS: st.SearchStrategy[GatedDeltaSpec] = st.builds(
    lambda heads, **fields: GatedDeltaSpec(*heads, **fields),
    st.sampled_from([(1, 1), (1, 3), (2, 4)]),
    key_dim=st.sampled_from([3, 16, 32]),
    value_dim=st.sampled_from([5, 16, 32]),
    kernel=st.integers(2, 5),
    eps=st.just(1e-6),
    tiled=st.booleans(),
)


@st.composite
def _mixers(
    draw: st.DrawFn,
    layers: Sequence[LayerSpec],
    heads: int,
    kv_heads: int,
    dim: int,
    states: bool,
) -> Mixer:
    """What mixes tokens behind ``layers``, whose keys and values it may read."""
    kinds = ["heads", "heads", "latents", "convolution"]
    kind = draw(st.sampled_from([*kinds, "state"] if states else kinds))
    if kind == "state":
        return draw(NETS | SCANS)
    if kind == "convolution":
        return ShortConvSpec(HIDDEN, draw(st.sampled_from([2, 3, 5])), draw(st.booleans()))
    over_latents = kind == "latents"
    attention = draw(latents(heads) if over_latents else attentions(heads, kv_heads, dim))
    sources = [
        (i, mixer)
        for i, mixer in enumerate(map(attention_of, layers))
        if mixer is not None
        and mixer.kv_from is None
        and (mixer.latent is not None) == over_latents
    ]
    if sources and draw(st.sampled_from([False, True])):
        source, read = draw(st.sampled_from(sources))
        return replace(attention, kv_from=source, window=read.window)
    return attention


def _side_by_side(
    mixers: st.SearchStrategy[Mixer], states: bool
) -> st.SearchStrategy[Mixer | MixerSum]:
    """One of ``mixers``, alone or with a factor, or beside another that keeps a state."""
    factors = st.sampled_from([1.0, 0.8])
    weighed = st.builds(lambda mixer, by: MixerSum((mixer,), (by,)), mixers, factors)
    if not states:
        return mixers | weighed

    def beside(mixer: Mixer, state: StateSpec, by: tuple[float, float], last: bool) -> MixerSum:
        if isinstance(mixer, StateSpec):
            return MixerSum((mixer,), by[:1])
        return MixerSum((mixer, state) if last else (state, mixer), by)

    pairs = st.builds(beside, mixers, NETS | SCANS, st.tuples(factors, factors), st.booleans())
    return mixers | weighed | pairs


@st.composite
def specs(
    draw: st.DrawFn,
    experts: bool = True,
    max_layers: int = 3,
    states: bool = False,
    heads: Sequence[tuple[int, int]] = ((4, 2), (2, 2), (4, 1)),
) -> ModelSpec:
    """Models of up to ``max_layers`` layers; ``experts``: of which some may be mixtures;
    ``states``: of which some may keep states; ``heads``: numbers of heads and KV heads, of which
    one is drawn."""
    num_heads, kv_heads = draw(st.sampled_from(heads))
    dim = draw(st.sampled_from([8, 12]))
    layers: list[LayerSpec] = []
    for _ in range(draw(st.integers(1, max_layers))):
        parts = draw(st.sampled_from(["both", "both", "both", "mixer", "mlp"]))
        mixer: Mixer | MixerSum | None = None
        if parts != "mlp":
            mixers = _mixers(layers, num_heads, kv_heads, dim, states)
            mixer = draw(_side_by_side(mixers, states))
        of_mixer = st.none() | NORMS if mixer is not None else st.none()
        of_mlp = st.none() | NORMS if parts != "mixer" else st.none()
        layers.append(
            LayerSpec(
                mixer,
                None if parts == "mixer" else draw(MLPS | mixtures() if experts else MLPS),
                attn_norm=draw(of_mixer),
                mlp_norm=draw(of_mlp),
                attn_post_norm=draw(of_mixer),
                mlp_post_norm=draw(of_mlp),
                parallel=parts == "both" and draw(st.booleans()),
                residual_scale=draw(st.sampled_from([1.0, 0.5])),
                output_scale=draw(st.booleans()),
            )
        )
    return ModelSpec(
        architecture="DrawnForCausalLM",
        vocab_size=211,
        hidden_size=HIDDEN,
        layers=tuple(layers),
        final_norm=draw(st.none() | NORMS),
        tie_embeddings=draw(st.booleans()),
        max_positions=64,
        dtype="float32",
        embedding_scale=draw(st.sampled_from([None, EmbeddingScale(1.7)])),
        logits_scale=draw(st.sampled_from([1.0, 0.25])),
        logits_softcap=draw(st.sampled_from([None, 2.0])),
        head_bias=draw(st.booleans()),
        token_inputs=draw(st.none() | TOKEN_INPUTS),
        learned_positions=draw(
            st.sampled_from([None, None, PositionTable(64), PositionTable(70, offset=2)])
        ),
        embed_norm=draw(st.none() | NORMS),
    )


UNEVEN_HEADS = ((4, 2), (6, 3), (5, 5), (8, 2), (6, 1), (9, 3))
"""Numbers of heads and KV heads that few numbers of ranks share evenly."""


def ranks_can_share(spec: ModelSpec, world: int) -> bool:
    """Whether so many ranks can divide the heads of every layer, and the columns of convolutions
    evenly."""

    def fits(mixer: Mixer) -> bool:
        match mixer:
            case AttentionSpec():
                return mixer.num_heads >= world
            case ShortConvSpec():
                return mixer.size % world == 0
            case GatedDeltaSpec():
                return mixer.value_heads % world == 0
            case _:
                return mixer.heads % world == 0

    return all(fits(mixer) for layer in spec.layers for mixer in layer.mixers)
