"""Kernels that engines of published shapes compile, and processes that compile them."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpu.block_formats import BlockFormats, LatticePoints
from penstock.backends.cuda.variants import Variant, variants
from penstock.cache.geometry import KvDType
from penstock.dtypes import QuantizationName
from penstock.errors import first_line
from penstock.interface.adapters import AdapterSlots
from penstock.interface.executor import Limits
from penstock.interface.plan_weights import PlanWeight
from penstock.interface.sources import Stored
from penstock.models.position_scale import PositionScale
from penstock.models.spec import (
    AlibiSpec,
    AttentionSpec,
    Chunk,
    ClampedSwiglu,
    ClampSpec,
    ExpertsSpec,
    LatentSpec,
    LayerSpec,
    MlpSpec,
    ModelSpec,
    NormSpec,
    PositionTable,
    QkNormSpec,
    RopeSpec,
    Routing,
    SharedExpertSpec,
)
from penstock.plan import ops
from penstock.plan.adapt import adapt
from penstock.plan.fuse import fuse
from penstock.plan.lower import lower
from penstock.plan.plan import Plan
from penstock.quant.choice import choose
from penstock.weights.model_folder import load_model_spec

NORM = NormSpec(eps=1e-5)

CONFIGS = Path(__file__).resolve().parents[1] / "configs"
Capability = tuple[int, int]

_SHARED_KIB = {(8, 0): 163, (8, 6): 99, (8, 9): 99, (9, 0): 227, (10, 0): 227, (12, 0): 99}
"""Shared memory that one program may use, in KiB, by compute capability."""


@dataclass(frozen=True)
class Case:
    """An engine's model and options."""

    model: str
    dtype: str = "bfloat16"
    quantization: QuantizationName = "none"
    group: int | None = None
    zero_points: bool = False
    activations: bool = False
    kv: KvDType = "bfloat16"
    trees: bool = False
    tokens: int = 2048
    unusual: bool = False
    """Whether the plan is left primitive, with what few models have put in."""
    blocks: BlockFormats | LatticePoints | None = None
    adapters: AdapterSlots | None = None

    def spec(self) -> ModelSpec:
        """The model with one layer: kernels of others are the same. Where it has experts there are
        two, as the last layer computes selected rows alone."""
        if self.model in _MADE:
            return replace(_MADE[self.model](), quantized=self.blocks)
        spec = replace(load_model_spec(CONFIGS / self.model), quantized=self.blocks)
        mixture = isinstance(spec.layers[0].mlp, ExpertsSpec)
        return replace(spec, layers=spec.layers[: 2 if mixture else 1])

    def plan(self) -> Plan:
        schemes = choose(
            *(self.quantization, self.group, True),
            zero_points=self.zero_points,
            activations=self.activations,
            window_columns=32,
        )
        dtype: Any = self.dtype
        plan = lower(self.spec(), dtype, quantization=schemes, kv_dtype=self.kv, half=True)
        if self.unusual:
            return _unusual(plan)
        return fuse(plan) if self.adapters is None else adapt(fuse(plan), self.adapters)

    def limits(self) -> Limits:
        spec = self.spec()
        return Limits(
            num_blocks=64,
            max_tokens=min(self.tokens, spec.max_positions),
            max_logit_rows=256,
            max_sequences=256,
            threads=1,
            trees=self.trees,
        )


CASES = {
    "8b": Case("llama-3.1-8b", trees=True),
    "8b-int8": Case("llama-3.1-8b", quantization="int8"),
    "8b-w8a8": Case("llama-3.1-8b", quantization="int8", activations=True, kv="int8", trees=True),
    "8b-int4": Case("llama-3.1-8b", quantization="int4", kv="int8"),
    "8b-w4a8": Case("llama-3.1-8b", quantization="int4", activations=True),
    "8b-int4-g128": Case("llama-3.1-8b", quantization="int4", group=128),
    "1b": Case("llama-3.2-1b"),
    "1b-fp16": Case("llama-3.2-1b", dtype="float16", kv="float16"),
    "1b-int4-g32z": Case("llama-3.2-1b", quantization="int4", group=32, zero_points=True),
    "1b-int8-g64z": Case(
        *("llama-3.2-1b", "bfloat16", "int8", 64), zero_points=True, activations=True
    ),
    "1b-q4_k_m": Case(
        "llama-3.2-1b", blocks=BlockFormats("Q4_K", {"v": "Q6_K", "down": "Q5_K", "embed": "Q6_K"})
    ),
    "1b-q4_0": Case(
        "llama-3.2-1b",
        blocks=BlockFormats("Q4_0", {"v": "Q5_1", "down": "Q4_1", "o": "Q5_0", "embed": "Q8_0"}),
    ),
    "1b-q2_k": Case(
        "llama-3.2-1b",
        blocks=BlockFormats(
            "Q2_K", {"v": "NVFP4", "down": "IQ4_XS", "o": "Q3_K", "embed": "IQ4_NL"}
        ),
    ),
    "1b-quip2": Case("llama-3.2-1b", blocks=LatticePoints(2)),
    "1b-quip3": Case("llama-3.2-1b", blocks=LatticePoints(3)),
    "1b-quip4-fp16": Case("llama-3.2-1b", "float16", blocks=LatticePoints(4), kv="float16"),
    "tiny-quip2-fp32": Case("tiny-lattice", "float32", blocks=LatticePoints(2), kv="float32"),
    "experts-mxfp4": Case("moe-5b-a1b", blocks=BlockFormats("MXFP4", only=True)),
    "experts": Case("moe-5b-a1b"),
    "experts-int8": Case("moe-5b-a1b", quantization="int8"),
    "experts-w8a8": Case("moe-5b-a1b", quantization="int8", activations=True),
    "experts-int4": Case("moe-5b-a1b", quantization="int4"),
    "experts-w4a8": Case("moe-5b-a1b", quantization="int4", activations=True),
    "experts-int4-g128z": Case("moe-5b-a1b", quantization="int4", group=128, zero_points=True),
    "experts-w8a8-g64": Case("moe-5b-a1b", "bfloat16", "int8", 64, activations=True),
    "tiny": Case("tiny", kv="int8", trees=True),
    "tiny-fp32": Case("tiny", dtype="float32", kv="float32"),
    "tiny-int4": Case("tiny", quantization="int4", group=32, activations=True),
    "tiny-experts": Case("tiny-experts"),
    "tiny-experts-fp16": Case("tiny-experts", dtype="float16", kv="float16"),
    "tiny-experts-fp32": Case("tiny-experts", dtype="float32", kv="float32"),
    "tiny-unusual": Case("tiny", unusual=True, trees=True),
    "tiny-unusual-fp32": Case("tiny", dtype="float32", kv="int8", unusual=True),
    "tiny-chunked": Case("tiny-chunked"),
    "tiny-slopes": Case("tiny-slopes", kv="int8", trees=True),
    "latents": Case("youtu-llm-2b", trees=True),
    "latents-int8": Case("youtu-llm-2b", kv="int8"),
    "tiny-latents": Case("tiny-latents", kv="int8"),
    "tiny-kv-fp8": Case("tiny", kv="fp8"),
    "tiny-kv-k8v4": Case("tiny", kv="k8v4"),
    "tiny-kv-int4": Case("tiny", kv="int4", trees=True),
    "tiny-latents-fp32": Case("tiny-latents", dtype="float32", kv="float32", trees=True),
    "8b-adapters": Case("llama-3.1-8b", adapters=AdapterSlots(8, 16)),
    "1b-int8-adapters": Case("llama-3.2-1b", quantization="int8", adapters=AdapterSlots(4, 32)),
    "1b-fp16-adapters": Case(
        "llama-3.2-1b", dtype="float16", kv="float16", adapters=AdapterSlots(2, 256)
    ),
    "tiny-fp32-adapters": Case(
        "tiny", dtype="float32", kv="float32", trees=True, adapters=AdapterSlots(3, 20)
    ),
}


def _tiny() -> ModelSpec:
    """Sizes that 16 does not divide, biases, norms of heads, a window, a gate by GELU."""
    attention = AttentionSpec(
        num_heads=6,
        num_kv_heads=2,
        head_dim=24,
        rope=RopeSpec(theta=10000.0, dim=24),
        scale=24**-0.5,
        window=33,
        qkv_bias=True,
        output_bias=True,
        qk_norm=QkNormSpec(1e-5),
    )
    return ModelSpec(
        architecture="TinyForCausalLM",
        vocab_size=211,
        hidden_size=72,
        layers=(LayerSpec(attention, MlpSpec(104, "gelu_tanh", True), NORM, NORM),),
        final_norm=NORM,
        tie_embeddings=False,
        max_positions=512,
        dtype="float32",
    )


def _tiny_experts() -> ModelSpec:
    """Mixtures of each kind that is routed otherwise, or has something else in its products."""
    tiny = _tiny()
    shared = SharedExpertSpec(40, gated=True)
    by_groups = Routing(
        "sigmoid", groups=3, groups_chosen=2, group_score="top2", choice_bias=True, scale=2.5
    )
    clamped = ClampedSwiglu(7.0, 1.702)
    mixtures = (
        ExpertsSpec(12, 4, 24, routing=by_groups, shared=shared),
        ExpertsSpec(5, 3, 28, clamped, Routing("softmax_chosen", normalize=False), bias=True),
        ExpertsSpec(16, 2, 48, "gelu", Routing("sparsemixer", normalize=False, jitter=0.01)),
        ExpertsSpec(8, 1, 32, routing=Routing(groups=2), shares_on="inputs"),
    )
    (layer,) = tiny.layers
    return replace(tiny, layers=tuple(replace(layer, mlp=each) for each in mixtures))


def _with_attention(**changes: Any) -> ModelSpec:
    """The tiny model with other fields of attention."""
    spec = _tiny()
    (layer,) = spec.layers
    return replace(spec, layers=(replace(layer, mixer=replace(layer.attention, **changes)),))


def _chunked() -> ModelSpec:
    """Chunks of attention, queries that grow with the position, clamps, norms of each head by
    weights of its own, learned positions, and xIELU."""
    spec = _with_attention(
        window=Chunk(32),
        position_scale=PositionScale(0.1, 8192),
        clamp=ClampSpec(8.0),
        qk_norm=QkNormSpec(1e-5, kind="layer", bias=True, each_head=True),
    )
    (layer,) = spec.layers
    plain = MlpSpec(104, "xielu", bias=True, gated=False)
    return replace(
        spec,
        layers=(replace(layer, mlp=plain),),
        learned_positions=PositionTable(spec.max_positions + 2, 2),
    )


def _lattice() -> ModelSpec:
    """The tiny model with rows of whole 32 columns, and parts of joined matrices that 16 does not
    divide."""
    spec = _with_attention(num_heads=4, output_bias=True)
    (layer,) = spec.layers
    return replace(spec, hidden_size=96, layers=(replace(layer, mlp=MlpSpec(160, "silu")),))


def _slopes() -> ModelSpec:
    """ALiBi whose slopes and positions are rounded, and norms of heads without a weight."""
    return _with_attention(
        rope=None,
        alibi=AlibiSpec(0.25, rounded=True),
        qk_norm=QkNormSpec(1e-5, weight=False),
    )


def _latents() -> ModelSpec:
    """Latents whose sizes no tile divides, for more heads than a tile has rows."""
    latent = LatentSpec(kv_rank=200, nope_dim=24, rope_dim=6, v_dim=20, q_rank=28)
    return _with_attention(
        num_heads=72,
        num_kv_heads=1,
        head_dim=latent.key_dim,
        rope=RopeSpec(theta=10000.0, dim=6, interleaved=True),
        latent=latent,
        qk_norm=None,
        qkv_bias=False,
        output_bias=False,
    )


_MADE: dict[str, Callable[[], ModelSpec]] = {
    "tiny": _tiny,
    "tiny-experts": _tiny_experts,
    "tiny-chunked": _chunked,
    "tiny-slopes": _slopes,
    "tiny-latents": _latents,
    "tiny-lattice": _lattice,
}
"""Models of no published shape."""


def _unusual(plan: Plan) -> Plan:
    """A primitive plan with a layer norm, a scale, a cap, and all that attention does to scores."""
    weights = dict(plan.weights)
    changed: list[ops.Op] = []
    for op in plan.ops:
        if isinstance(op, ops.Attention):
            weights["sinks"] = PlanWeight(Stored("sinks", (op.heads,)))
            op = replace(op, softcap=30.0, slopes=(0.5,) * op.heads, sinks="sinks")
        if isinstance(op, ops.Argmax):
            changed.append(ops.SoftCap(op.x, op.x, 30.0))
        if isinstance(op, ops.RmsNorm) and op.weight == "final_norm":
            op = ops.LayerNorm(op.x, op.out, op.weight, op.weight, op.eps)
        changed.append(op)
        if isinstance(op, ops.Embed):
            changed.append(ops.Scale(op.out, op.out, 2.0))
    ropes = tuple(replace(rope, interleaved=True) for rope in plan.ropes)
    return replace(plan, ops=tuple(changed), weights=weights, ropes=ropes)


def enumerate_variants(
    names: Iterable[str], capabilities: Iterable[Capability]
) -> dict[Variant, bool]:
    """What these of ``CASES`` compile for GPUs of these capabilities, each once, in the order of
    :func:`representatives`."""
    found: dict[tuple[str, str, Capability], Variant] = {}
    for name in names:
        case = CASES[name]
        plan, limits = case.plan(), case.limits()
        for capability in capabilities:
            for each in variants(plan, limits, capability):
                found.setdefault((each.name, each.key, capability), each)
    return representatives(list(found.values()))


def representatives(found: Sequence[Variant]) -> dict[Variant, bool]:
    """``found`` with those first, as True, that stand for others: one of every kind, for one GPU
    after the other, and every kernel for each GPU."""
    kinds: dict[object, list[Variant]] = {}
    for each in found:
        kinds.setdefault(each.kind, []).append(each)
    needed: dict[Variant, bool] = {}
    for i, alike in enumerate(kinds.values()):
        capabilities = sorted({each.capability for each in alike})
        wanted = capabilities[i % len(capabilities)]
        needed[next(each for each in alike if each.capability == wanted)] = True
    met = {(each.name, each.capability) for each in needed}
    for each in found:
        if (each.name, each.capability) not in met:
            met.add((each.name, each.capability))
            needed[each] = True
    return needed | {each: False for each in found if each not in needed}


@dataclass(frozen=True)
class Outcome:
    """What became of a kernel."""

    variant: Variant
    seconds: float
    shared: int | None  # bytes
    problem: str | None

    def figures(self) -> dict[str, object]:
        return {
            "kernel": str(self.variant),
            "seconds": round(self.seconds, 2),
            "shared": self.shared,
            "problem": self.problem,
        }


def compile_all(found: Sequence[Variant], jobs: int, seconds: float) -> Iterator[Outcome]:
    """Compile ``found`` in their order in as many processes, and tell of each, in that order; after
    ``seconds`` no more are begun."""
    end = time.monotonic() + seconds
    # Forked workers have the variants, whose kernels cannot be sent. Nothing has been compiled in
    # this process, so no thread of a compiler is lost.
    context = multiprocessing.get_context("fork")
    with context.Pool(jobs, _Worker.start, (found, end)) as pool:
        for i, (spent, shared, problem) in enumerate(pool.imap(_Worker.compile, range(len(found)))):
            if spent is None:
                return
            yield Outcome(found[i], spent, shared, problem)


class _Worker:
    """A process that compiles."""

    found: Sequence[Variant]
    end: float

    @classmethod
    def start(cls, found: Sequence[Variant], end: float) -> None:
        cls.found, cls.end = found, end

    @classmethod
    def compile(cls, index: int) -> tuple[float | None, int | None, str | None]:
        start = time.monotonic()
        if start > cls.end:
            return None, None, None
        variant = cls.found[index]
        try:
            shared = int(variant.compile().metadata.shared)
        except Exception as error:  # whatever a compiler raises is what is looked for
            while error.__cause__ is not None and isinstance(error.__cause__, Exception):
                error = error.__cause__
            problem = getattr(error, "error_message", None) or first_line(error)
            return time.monotonic() - start, None, f"{type(error).__name__}: {problem}"
        limit = _SHARED_KIB.get(variant.capability, 99) * 1024
        problem = None if shared <= limit else f"{shared} bytes of shared memory, of {limit}"
        return time.monotonic() - start, shared, problem
