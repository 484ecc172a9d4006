"""What keeps a backend from running a model is reported before any memory is divided."""

from __future__ import annotations

import resource
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.checkpoints import tiny_checkpoint
from support.convolved import convolved
from support.families import PUBLISHED
from support.latents import over_latents
from support.needs import needs_native
from support.state_plans import state_spec
from support.tiny_plans import make_spec
from support.windowed import ALIKE, HEADS, NUM_BLOCKS, SIZES, A, Driver, plan_of, spec_of

from penstock.backends.backend import Backend
from penstock.backends.registry import BACKENDS
from penstock.cache.geometry import KvDType
from penstock.config import EngineConfig
from penstock.errors import ConfigError
from penstock.gpu import Gpu, GpuSearch
from penstock.hardware import Hardware, detect
from penstock.interface.executor import Limits
from penstock.models.draft_heads import MedusaSpec
from penstock.models.registry import read_spec
from penstock.models.spec import (
    AttentionSpec,
    Chunk,
    ClampSpec,
    ExpertsSpec,
    ModelSpec,
    NormSpec,
    PositionScale,
    QkNormSpec,
    SelectiveSpec,
)
from penstock.plan.fuse import fuse
from penstock.plan.lower import lower
from penstock.resolve import resolve
from penstock.speculative_config import (
    DraftModel,
    Eagle,
    Medusa,
    Ngram,
    QuantizedSelf,
    SpeculativeConfig,
)
from penstock.weights.dummy import DummyWeights
from penstock.weights.model_folder import load_model_spec

H100 = Gpu("NVIDIA H100", 80 << 30, 79 << 30, 132, (9, 0))
FULL = spec_of((1, 32, None), (2, 16, None))
"""One group of layers whose heads differ in size, and whose layers do not."""

LARGE = spec_of((1, 258, None))


def machine(gpu: Gpu | None) -> Hardware:
    return replace(detect(), gpu=GpuSearch(gpu, None))


def resolved(
    spec: ModelSpec, gpu: Gpu | None = None, draft: ModelSpec | None = None, **options: Any
) -> Any:
    return resolve(EngineConfig(**options), machine(gpu), spec, Path("m"), Path("m"), draft).config


def medusa(target: ModelSpec) -> MedusaSpec:
    fields = {name: getattr(target, name) for name in ModelSpec.__dataclass_fields__}
    return MedusaSpec(**fields | {"layers": (), "num_heads": 2, "num_blocks": 1})


@needs_native
@pytest.mark.parametrize("spec", [ALIKE, HEADS, SIZES, FULL, make_spec()])
@pytest.mark.parametrize("kv", ["float32", "bfloat16", "int8"])
def test_the_cpu_has_an_obstacle_where_its_executor_moves_no_slots(
    spec: ModelSpec, kv: Any
) -> None:
    plan = plan_of(spec, "float32", kv)
    limits = Limits(NUM_BLOCKS, max_tokens=64, max_logit_rows=64, max_sequences=4, threads=1)
    weights = DummyWeights(plan.weights, 3, "float32")
    executor = BACKENDS["cpu"].bind(plan, weights, limits)
    driver = Driver(plan, executor)
    step = driver.step((driver.start(), A[:3]), slot_moves=[(3, 2)])
    found = BACKENDS["cpu"].obstacle(plan, trees=True)
    if found is None:
        executor.run(step)
    else:
        with pytest.raises(ValueError, match="slots cannot be moved"):
            executor.run(step)
    executor.close()
    assert BACKENDS["cpu"].obstacle(plan) is None
    assert BACKENDS["reference"].obstacle(plan, trees=True) is None


def test_draft_trees_are_refused_where_slots_cannot_be_moved() -> None:
    heads = medusa(SIZES)
    for gpu in (None, H100):
        with pytest.raises(ConfigError, match=r"no slots there; choose .*ngram.*eagle.*width=1"):
            resolved(SIZES, gpu, heads, backend="cpu", speculative=Medusa())
    with pytest.raises(ConfigError, match="cpu backend cannot verify draft trees"):
        resolved(SIZES, None, heads, speculative=Medusa())
    assert resolved(SIZES, None, speculative=Ngram()).backend == "cpu"
    assert resolved(SIZES, None, heads, speculative=Medusa(num_tokens=1)).backend == "cpu"
    assert resolved(HEADS, None, medusa(HEADS), speculative=Medusa()).backend == "cpu"
    with pytest.raises(ConfigError, match="cpu backend cannot verify draft trees"):
        resolved(SIZES, H100, heads, speculative=Medusa())  # a GPU cannot run the model either
    named = resolved(SIZES, None, heads, backend="reference", speculative=Medusa())
    assert named.backend == "reference"


@pytest.mark.parametrize(
    ("config", "trees"),
    [
        (Medusa(), True),
        (Medusa(num_tokens=1), False),
        (Eagle(), False),
        (Eagle(width=2), True),
        (Eagle(width=2, depth=1), True),
        (Eagle(width=2, num_tokens=1), False),
        (Ngram(), False),
        (DraftModel(), False),
        (QuantizedSelf(), False),
    ],
)
def test_methods_that_draft_trees(config: SpeculativeConfig, trees: bool) -> None:
    assert config.drafts_trees is trees


def test_a_gpu_refuses_layers_of_several_sizes_before_memory_is_divided(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def budget(self: Backend, *_: Any) -> Any:
        raise AssertionError("memory is divided")

    monkeypatch.setattr(type(BACKENDS["cuda"]), "budget", budget)
    with pytest.raises(ConfigError, match=r"of different sizes; choose --backend cpu"):
        resolved(SIZES, H100, backend="cuda")
    # Its draft as much as a model.
    with pytest.raises(ConfigError, match=r"of different sizes; choose --backend cpu"):
        resolved(make_spec(), H100, SIZES, backend="cuda", speculative=DraftModel())
    with pytest.raises(AssertionError, match="memory is divided"):
        resolved(ALIKE, H100, backend="cuda")


@pytest.mark.parametrize(
    ("spec", "options", "why"),
    [
        (SIZES, {}, "of different sizes"),
        (SIZES, {"quantization": "int8", "kv_cache_dtype": "int8"}, "of different sizes"),
        (SIZES, {"speculative": Ngram()}, "of different sizes"),
        (make_spec(), {"draft": SIZES, "speculative": DraftModel()}, "of different sizes"),
        (LARGE, {}, "a head of 258 is outside 8..256, which attention handles"),
    ],
)
def test_auto_passes_over_a_gpu_that_cannot_run_the_models(
    spec: ModelSpec, options: dict[str, Any], why: str
) -> None:
    config = resolved(spec, H100, **options)
    assert config.backend == "cpu"
    (note,) = (note for note in config.notes if "cuda" in note)
    assert note.startswith("cuda is not used: ")
    assert note.endswith(why)
    assert "as cuda cannot run the model" in config.explain()
    assert "cuda" not in resolved(spec, None, **options).explain()


@pytest.mark.parametrize(
    ("head_dim", "value_dim", "why"),
    [
        (16, 8, None),
        (576, 512, None),
        (577, 513, "a latent of 513 is outside 1..512"),
        (641, 512, "a rotated key of 129 beside latents is outside 1..128"),
        (8, 8, "a rotated key of 0 beside latents is outside 1..128"),
    ],
)
def test_latents_that_a_gpu_has_no_room_for_are_an_obstacle(
    head_dim: int, value_dim: int, why: str | None
) -> None:
    plan = plan_of(ALIKE)
    latent = replace(plan.kv_layers[0], head_dim=head_dim, value_dim=value_dim)
    plan = replace(plan, kv_layers=(latent,))
    if why is None:
        assert BACKENDS["cuda"].obstacle(plan) is None
        return
    with pytest.raises(ConfigError, match=f"{why}, which attention handles; choose --backend cpu"):
        BACKENDS["cuda"].check_runnable(plan)


@pytest.mark.parametrize(
    "changes",
    [
        {"clamp": ClampSpec(2.0)},
        {"position_scale": PositionScale(0.1, 8)},
        {"window": Chunk(64)},
        {"v_norm": NormSpec(1e-5, weight=False)},
        {"qk_norm": QkNormSpec(1e-5, kind="layer")},
        {"qk_norm": QkNormSpec(1e-5, each_head=True)},
    ],
)
def test_rare_ops_are_no_obstacle(changes: dict[str, Any]) -> None:
    spec = make_spec()
    attention = replace(spec.layers[0].attention, **changes)
    spec = replace(spec, layers=(replace(spec.layers[0], mixer=attention),))
    for plan in (lower(spec), fuse(lower(spec))):
        for name in ("cuda", "cpu"):
            BACKENDS[name].check_runnable(plan)


@pytest.mark.parametrize("family", PUBLISHED)
def test_a_gpu_runs_every_family_that_attends_but_gemma_4(family: str) -> None:
    spec = read_spec(PUBLISHED[family])
    attends = all(isinstance(layer.mixer, AttentionSpec) for layer in spec.layers)
    found = BACKENDS["cuda"].obstacle(fuse(lower(spec, max_positions=64)))
    assert (found is None) == (attends and family != "gemma4_text")


def test_a_gpu_refuses_numbers_that_shares_are_multiplied_by() -> None:
    spec = load_model_spec(tiny_checkpoint("qwen3_moe"))
    mlp = spec.layers[0].mlp
    assert isinstance(mlp, ExpertsSpec)
    scaled = replace(mlp, routing=replace(mlp.routing, share_scale=True))
    plan = lower(replace(spec, names=None, layers=(replace(spec.layers[0], mlp=scaled),)))
    with pytest.raises(ConfigError, match=r"cuda backend does not .*--backend cpu"):
        BACKENDS["cuda"].check_runnable(plan)
    BACKENDS["cpu"].check_runnable(plan)


def _odd_heads(spec: ModelSpec) -> ModelSpec:
    """A model whose heads are larger than the native executor's."""
    attention = replace(spec.layers[0].attention, head_dim=514)
    return replace(spec, layers=(replace(spec.layers[0], mixer=attention),))


def _many_experts(spec: ModelSpec) -> ModelSpec:
    """A model with more experts than the native executor has."""
    experts = ExpertsSpec(1 << 17, 2, 16)
    return replace(spec, layers=(replace(spec.layers[0], mlp=experts),))


@needs_native
@pytest.mark.parametrize(
    ("kv_dtype", "spec", "why"),
    [
        ("int4", spec_of((1, 36, None)), "in int4 have a multiple of 8 components, not 36"),
        ("k8v4", spec_of((1, 36, None)), "in k8v4 have a multiple of 8 components, not 36"),
        ("int4", over_latents(make_spec()), "latents are not cached in int4"),
        ("k8v4", over_latents(make_spec()), "latents are not cached in k8v4"),
        ("fp8", over_latents(make_spec()), "latents are not cached in fp8"),
    ],
)
def test_what_is_not_cached_in_few_bits_is_an_obstacle(
    kv_dtype: KvDType, spec: ModelSpec, why: str
) -> None:
    plan = lower(spec, kv_dtype=kv_dtype)
    assert why in str(BACKENDS["cpu"].obstacle(plan))
    assert BACKENDS["reference"].obstacle(plan) is None
    if "latents" in why:
        assert f"a KV cache in {kv_dtype}" in str(BACKENDS["cuda"].obstacle(plan))


@needs_native
@pytest.mark.parametrize(
    ("change", "why"),
    [
        (_odd_heads, "even size up to 512, not 514"),
        (_many_experts, "there are 1 to 65536 experts"),
    ],
)
def test_what_the_native_executor_refuses_is_an_obstacle_before_memory_is_divided(
    change: Callable[[ModelSpec], ModelSpec], why: str
) -> None:
    spec = change(make_spec())
    for plan in (lower(spec), fuse(lower(spec))):
        with pytest.raises(ConfigError, match=f"{why}.*choose the slow NumPy backend"):
            BACKENDS["cpu"].check_runnable(plan)
        BACKENDS["reference"].check_runnable(plan)
    with pytest.raises(ConfigError, match=why):
        resolved(spec)
    assert resolved(spec, backend="reference").backend == "reference"
    weights = DummyWeights(lower(spec).weights, 3, "float32")
    limits = Limits(4, max_tokens=8, max_logit_rows=8, max_sequences=2, threads=1)
    with pytest.raises(ConfigError, match=why):
        BACKENDS["cpu"].bind(lower(spec), weights, limits)


@needs_native
def test_asking_for_obstacles_takes_no_memory_for_weights() -> None:
    spec = make_spec()
    large = replace(spec, vocab_size=1 << 20, hidden_size=1 << 14)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert BACKENDS["cpu"].obstacle(lower(large)) is None  # of 64 GiB
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 20  # KiB


def test_a_gpu_refuses_convolutions_along_the_sequence() -> None:
    plan = fuse(lower(convolved(make_spec(), "ca")))
    with pytest.raises(
        ConfigError, match=r"runs its convolutions \(ShortConv\).*choose --backend cpu"
    ):
        BACKENDS["cuda"].check_runnable(plan)
    BACKENDS["cpu"].check_runnable(plan)
    with pytest.raises(ConfigError, match="has the inputs of convolutions: it moves no slots"):
        BACKENDS["cpu"].check_runnable(plan, trees=True)


@pytest.mark.parametrize(
    ("state", "kernel", "why"),
    [(1025, 4, "heads of 1 to 1024 rows"), (16, 17, "a convolution sees 2 to 16 tokens")],
)
@needs_native
def test_the_cpu_refuses_states_that_its_kernels_cannot_hold(
    state: int, kernel: int, why: str
) -> None:
    """The executor says so: no number stands twice."""
    scan = SelectiveSpec(2, head_dim=16, groups=1, state=state, kernel=kernel, eps=1e-5)
    spec = state_spec(scan)
    with pytest.raises(ConfigError, match=f"{why}.*--backend reference"):
        resolved(spec, backend="cpu")
    assert BACKENDS["reference"].obstacle(lower(spec)) is None
    fits = replace(scan, state=1024, kernel=16)
    assert BACKENDS["cpu"].obstacle(lower(state_spec(fits))) is None


@needs_native
def test_the_cpu_refuses_convolutions_of_too_many_taps() -> None:
    plan = lower(convolved(make_spec(), "ca", kernel=17))
    with pytest.raises(ConfigError, match=r"2 to 16 taps.*--backend reference"):
        BACKENDS["cpu"].check_runnable(plan)
    assert BACKENDS["reference"].obstacle(plan) is None
    assert BACKENDS["cpu"].obstacle(lower(convolved(make_spec(), "ca", kernel=16))) is None


def test_where_no_backend_runs_a_model_the_last_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = load_model_spec(tiny_checkpoint("qwen3_moe"))
    assert resolved(spec, H100).backend == "cuda"
    monkeypatch.setattr(type(BACKENDS["cuda"]), "runs_experts", False)
    assert resolved(spec, H100).backend == "cpu"  # without a choice: the GPU's does not run them
    monkeypatch.setattr(type(BACKENDS["cpu"]), "runs_experts", False)
    for gpu in (None, H100):
        with pytest.raises(ConfigError, match=r"the cpu backend does not .*--backend reference"):
            resolved(spec, gpu)
    assert resolved(spec, H100, backend="reference").backend == "reference"
