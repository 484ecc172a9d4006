"""Sharded plans: several ranks compute bit by bit what one does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.checkpoints import tiny_checkpoint
from support.gptq_checkpoints import gptq_checkpoint
from support.needs import needs_native
from support.rank_steps import LIMITS, STEPS, own_logits
from support.ranks import in_ranks
from support.state_steps import with_states
from support.tiny_plans import make_spec

from penstock.backends.reference.executor import ReferenceExecutor
from penstock.backends.registry import backend
from penstock.errors import ConfigError
from penstock.interface.collective import ThreadRank
from penstock.interface.sources import RowsOf
from penstock.interface.step import StepInput, StepResult
from penstock.interface.weights import WeightSource
from penstock.models.spec import AttentionSpec, GatedDeltaSpec, ModelSpec, QkNormSpec
from penstock.plan import ops
from penstock.plan.fuse import fuse
from penstock.plan.kv_groups import group_layers
from penstock.plan.lower import lower
from penstock.plan.memory import plan_memory
from penstock.plan.plan import Plan
from penstock.plan.shard import shard
from penstock.plan.shard_states import own_state
from penstock.quant.choice import choose
from penstock.weights.checkpoint import open_weights
from penstock.weights.dummy import DummyWeights
from penstock.weights.model_folder import load_model_spec

SPECS = {
    "plain": make_spec(heads=(12, 6)),
    "bias": make_spec(bias=True, tie=False, heads=(6, 6)),
    "qk_norm and window": make_spec(qk_norm=True, window=33, heads=(6, 6)),
}


def slow(family: str) -> Any:
    return pytest.param(family, marks=pytest.mark.slow)


def run_all(executor: ReferenceExecutor, steps: Sequence[StepInput]) -> list[StepResult]:
    return [executor.run(step) for step in steps]


def check(
    plan: Plan,
    weights: Callable[[Plan], WeightSource],
    fused: bool,
    worlds: Sequence[int] = (2, 3),
) -> None:
    """So many ranks give bitwise what one gives."""

    def made(whole: Plan) -> Plan:
        return fuse(whole) if fused else whole

    # Alike for all groups: the reference keeps layers apart.
    steps = [with_states(step) if plan.state_layers else step for step in STEPS]
    steps = [replace(step, groups=step.groups * len(plan.kv_groups)) for step in steps]
    alone = run_all(ReferenceExecutor(made(plan), weights(plan), LIMITS), steps)
    for world in worlds:

        def ranks_results(rank: ThreadRank) -> list[StepResult]:
            own = shard(plan, rank.rank, rank.world)
            executor = ReferenceExecutor(made(own), weights(own), LIMITS, rank)
            return run_all(executor, steps)

        for rank, results in enumerate(in_ranks(world, ranks_results)):
            own = made(shard(plan, rank, world))
            for one, several in zip(alone, results, strict=True):
                np.testing.assert_array_equal(several.logits, own_logits(own, rank, one.logits))
                if rank == 0:
                    np.testing.assert_array_equal(several.argmax, one.argmax)
                np.testing.assert_array_equal(several.hidden, one.hidden)


@pytest.mark.thinned(5)
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS.keys())
def test_ranks_compute_what_one_does(spec: ModelSpec, dtype: Any, fused: bool) -> None:
    check(lower(spec, dtype), lambda plan: DummyWeights(plan.weights, 3, dtype), fused)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_head_for_each_rank(dtype: Any) -> None:
    plan = lower(make_spec(heads=(3, 3)), dtype)
    check(plan, lambda own: DummyWeights(own.weights, 3, dtype), False, [3])


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize(
    ("name", "group", "activations"),
    [("int8", None, True), ("int4", None, False), ("int4", 32, True), ("int8", 64, False)],
)
def test_quantized(name: Any, group: int | None, activations: bool, fused: bool) -> None:
    schemes = choose(name, group, True, activations=activations)
    plan = lower(SPECS["bias"], "bfloat16", quantization=schemes, kv_dtype="int8")
    check(plan, lambda own: DummyWeights(own.weights, 3, "bfloat16"), fused)


@pytest.mark.parametrize("family", ["llama", "phi3"])
def test_ranks_read_their_rows_of_a_checkpoint(tmp_path: Path, family: str) -> None:
    """Those of a quantized one, too, and of matrices that are stored as one."""
    for folder in gptq_checkpoint(tmp_path, family=family, sym=False):
        spec = load_model_spec(folder)
        plan = lower(spec)
        alone = ReferenceExecutor(plan, open_weights(folder, spec, plan.weights), LIMITS)
        expected = run_all(alone, STEPS)

        def of_rank(rank: ThreadRank) -> list[StepResult]:
            own = shard(plan, rank.rank, rank.world)  # noqa: B023
            weights = open_weights(folder, spec, own.weights)  # noqa: B023
            return run_all(ReferenceExecutor(own, weights, LIMITS, rank), STEPS)

        for rank, results in enumerate(in_ranks(2, of_rank)):
            for one, several in zip(expected, results, strict=True):
                own = own_logits(shard(plan, rank, 2), rank, one.logits)
                np.testing.assert_array_equal(several.logits, own)


def check_checkpoint(folder: Path, world: int, fused: bool, dtype: Any = "float32") -> None:
    """So many ranks give bitwise what one gives, of a checkpoint's weights."""
    spec = load_model_spec(folder)
    plan = lower(spec, dtype)
    check(plan, lambda own: open_weights(folder, spec, own.weights, dtype), fused, [world])


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize(
    "family",
    ["qwen3_moe", "qwen2_moe", *(slow(x) for x in ("gpt_oss", "llama4_text", "granitemoe"))],
)
def test_experts(family: str, fused: bool) -> None:
    """Each rank has some columns of what every expert makes; those of shared ones, too."""
    check_checkpoint(tiny_checkpoint(family), 2, fused)


def test_experts_of_three_ranks_with_biases_and_norms() -> None:
    heads = {"num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 10}
    check_checkpoint(tiny_checkpoint("mixtral", **heads), 3, True)
    check_checkpoint(tiny_checkpoint("gpt_oss"), 2, False, "bfloat16")


@pytest.mark.parametrize("shuffled", [False, True])
def test_experts_that_a_checkpoint_has_quantized(tmp_path: Path, shuffled: bool) -> None:
    form: dict[str, Any] = {"shuffled": shuffled, "desc_act": shuffled, "sym": False}
    folder, _ = gptq_checkpoint(tmp_path, family="mixtral", **form)
    check_checkpoint(folder, 2, True)
    own = shard(lower(load_model_spec(folder)), 1, 2)
    assert own.weights["layers.0.experts.up.share"].shape == (5, 48, 64)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("family", ["deepseek_v3", slow("deepseek_v2"), slow("minicpm3")])
def test_latents(family: str, world: int, fused: bool) -> None:
    """Each rank has some of the heads, and all latents."""
    folder = tiny_checkpoint(family)
    plan = lower(load_model_spec(folder))
    own = shard(plan, 1, world)
    assert own.kv_layers == plan.kv_layers
    heads = {op.heads for op in own.ops if isinstance(op, ops.Attention)}
    assert heads == {op.heads // world for op in plan.ops if isinstance(op, ops.Attention)}
    parts = {op.heads for op in own.ops if isinstance(op, ops.HeadLinear)}
    assert parts == heads
    check_checkpoint(folder, world, fused)


@pytest.mark.thinned(5)
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize(
    ("family", "world"),
    [
        ("qwen3_next", 2),
        ("falcon_h1", 2),
        ("lfm2", 2),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                ("granitemoehybrid", 2),  # one group of B and C, and norms of all columns
                ("nemotron_h", 2),
                ("bamba", 2),
                ("mamba2", 2),
                ("mamba2", 4),
                ("lfm2_moe", 2),
            )
        ),
    ],
)
def test_states_and_convolutions(family: str, world: int, fused: bool) -> None:
    """Each rank keeps the states of some heads, and caches some columns."""
    folder = tiny_checkpoint(family)
    plan = lower(load_model_spec(folder))
    own = shard(plan, 1, world)
    for layer, mine in zip(plan.state_layers, own.state_layers, strict=True):
        assert mine.heads * world == layer.heads
        assert mine.channels < layer.channels
    for cached, mine in zip(plan.kv_layers, own.kv_layers, strict=True):
        if cached.rows is not None:
            assert mine == replace(cached, head_dim=cached.head_dim // world)
    check_checkpoint(folder, world, fused)


@pytest.mark.parametrize(
    ("family", "message"),
    [
        ("mamba2", "3 ranks cannot share .* heads and .* groups of B and C .*; take one of 1, 2,"),
        (
            "lfm2",
            "3 ranks cannot share the 64 columns of convolutions.*; take one of 1, 2, 4",
        ),
    ],
)
def test_states_that_ranks_cannot_share(family: str, message: str) -> None:
    plan = lower(load_model_spec(tiny_checkpoint(family)))
    with pytest.raises(ConfigError, match=message):
        shard(plan, 0, 3)


@pytest.mark.parametrize(("heads", "world"), [((2, 4), 3), ((3, 6), 2), ((1, 3), 2)])
def test_heads_of_states_that_ranks_cannot_share(heads: tuple[int, int], world: int) -> None:
    net = GatedDeltaSpec(*heads, key_dim=4, value_dim=4, kernel=2, eps=1e-6)
    with pytest.raises(ConfigError, match=f"{world} ranks cannot share {heads[1]} value heads"):
        own_state(net, 0, world)


def test_what_heads_of_states_share() -> None:
    """Keys of two ranks each, where there are fewer key heads than ranks."""
    net = GatedDeltaSpec(2, 8, key_dim=3, value_dim=5, kernel=2, eps=1e-6)
    own = own_state(net, 2, 4)
    assert own.spec == replace(net, key_heads=1, value_heads=2)
    assert (own.heads, own.channels) == ((4, 6), ((3, 6), (9, 12), (32, 42)))


def test_what_tiled_heads_of_states_share() -> None:
    """A rank's heads use all key heads, or each another."""
    net = GatedDeltaSpec(2, 8, key_dim=3, value_dim=5, kernel=2, eps=1e-6, tiled=True)
    two, eight = own_state(net, 1, 2), own_state(net, 5, 8)
    assert two.spec == replace(net, key_heads=2, value_heads=4)
    assert (two.heads, two.channels) == ((4, 8), ((0, 6), (6, 12), (32, 52)))
    assert eight.spec == replace(net, key_heads=1, value_heads=1)
    assert (eight.heads, eight.channels) == ((5, 6), ((3, 6), (9, 12), (37, 42)))
    net = GatedDeltaSpec(3, 6, key_dim=3, value_dim=5, kernel=2, eps=1e-6, tiled=True)
    assert own_state(net, 1, 2).spec == replace(net, value_heads=3)
    with pytest.raises(ConfigError, match="4 ranks cannot share 12 value heads"):
        own_state(replace(net, key_heads=2, value_heads=12, tiled=True), 0, 4)


def test_uneven_heads_of_latents() -> None:
    check_checkpoint(tiny_checkpoint("deepseek_v3"), 3, True)


def test_what_a_rank_has() -> None:
    plan = lower(SPECS["plain"])
    ranks = [shard(plan, rank, 3) for rank in range(3)]
    for rank, own in enumerate(ranks):
        assert [layer.kv_heads for layer in own.kv_layers] == [2, 2]
        query = own.weights["layers.1.q.share"]
        assert query.shape == (64, 72)
        whole = plan.weights["layers.1.q"].source
        assert query.source == RowsOf(whole, ((64 * rank, 64 * rank + 64),))
        assert own.weights["embed"] == plan.weights["embed"]  # for lookups, beside rows of it
    rows = [own.weights["embed.share"].shape[0] for own in ranks]
    assert sum(rows) == 211
    assert max(rows) - min(rows) <= 1
    read = [sum(np.prod(w.shape) for n, w in own.weights.items() if n != "embed") for own in ranks]
    assert sum(read) == pytest.approx(plan.num_parameters, rel=0.01)


@pytest.mark.parametrize("fused", [False, True])
def test_all_ranks_gather_alike_and_no_more_than_is_read(fused: bool) -> None:
    plans = [shard(lower(SPECS["qk_norm and window"]), rank, 2) for rank in range(2)]
    plans = [fuse(plan) for plan in plans] if fused else plans
    first, second = ([op.kind for op in plan.ops] for plan in plans)
    assert first == second
    assert first.count("AllGather") == 2 * 4  # attended, o, inner, down
    assert first.count("GatherToFirst") == 1  # logits
    assert "logits" in plans[0].buffers
    assert "logits" not in plans[1].buffers
    if fused:
        assert {"RopeWrite", "AddNorm"} <= set(first)
        assert not {"Rope", "RmsNorm", "Gate", "KvWrite", "HeadNorm"} & set(first)
    plan_memory(plans[0], 64, 8)


def test_one_rank_runs_the_plan_itself() -> None:
    plan = lower(make_spec())
    assert shard(plan, 0, 1) is plan


@pytest.mark.parametrize(
    ("heads", "world", "queries", "cached"),
    [
        ((8, 8), 3, [2, 3, 3], [2, 3, 3]),
        ((9, 3), 2, [3, 6], [1, 2]),
        ((9, 3), 4, [1, 2, 3, 3], [1, 1, 1, 1]),
        ((9, 3), 8, [1, 1, 1, 1, 1, 1, 1, 2], [1] * 8),
        ((6, 1), 4, [1, 2, 1, 2], [1] * 4),
    ],
)
@pytest.mark.parametrize("qk_norm", [False, True])
def test_heads_that_ranks_share_unevenly(
    heads: tuple[int, int], world: int, queries: list[int], cached: list[int], qk_norm: bool
) -> None:
    """Whole KV heads, or some of the query heads of one, which several ranks cache then."""
    plan = lower(make_spec(heads=heads, qk_norm=qk_norm, bias=True), "bfloat16")
    ranks = [shard(plan, rank, world) for rank in range(world)]
    for rank, own in enumerate(ranks):
        attentions = [op for op in own.ops if isinstance(op, ops.Attention)]
        assert {(op.heads, op.kv_heads) for op in attentions} == {(queries[rank], cached[rank])}
        assert {layer.kv_heads for layer in own.kv_layers} == {cached[rank]}
        assert own.kv_groups.groups == plan.kv_groups.groups
    check(plan, lambda own: DummyWeights(own.weights, 3, "bfloat16"), True, [world])


def test_groups_of_layers_are_those_of_the_whole_plan() -> None:
    """Though a rank's layers have other sizes, by which it would group them otherwise."""
    spec = make_spec(heads=(8, 8))
    (layer,) = set(spec.layers)
    attention = layer.mixer
    assert isinstance(attention, AttentionSpec)
    wide = replace(layer, mixer=replace(attention, window=7))
    narrow = replace(layer, mixer=replace(attention, num_kv_heads=2))
    plan = lower(replace(spec, layers=(wide, *(narrow,) * 4)))
    ranks = [shard(plan, rank, 3) for rank in range(3)]
    for own in ranks:
        assert own.kv_groups.groups == plan.kv_groups.groups
        assert own.kv_groups.windows == plan.kv_groups.windows
    alone = [group_layers(own.kv_layers, own.kv_dtype).groups for own in ranks]
    assert any(groups != plan.kv_groups.groups for groups in alone)
    check(plan, lambda own: DummyWeights(own.weights, 3, "float32"), True, [3])


def test_worlds_that_cannot_share_the_heads() -> None:
    plan = lower(make_spec(heads=(8, 4)))
    with pytest.raises(ConfigError, match=r"9 ranks cannot share 8 heads.*take at most 8 ranks"):
        shard(plan, 0, 9)
    with pytest.raises(ValueError, match="no rank 2 of 2"):
        shard(plan, 2, 2)
    with pytest.raises(ValueError, match="before it is fused"):
        shard(fuse(plan), 0, 2)


@pytest.mark.parametrize("world", [2, 3])
def test_queries_that_are_normed_over_all_heads(world: int) -> None:
    """They are gathered, normed by all, and each rank takes its own."""
    spec = make_spec(heads=(4, 2))
    norm = QkNormSpec(1e-5, over="projection")
    layers = tuple(
        replace(layer, mixer=replace(layer.mixer, qk_norm=norm)) for layer in spec.layers
    )
    for dtype in ("float32", "bfloat16"):
        plan = lower(replace(spec, layers=layers), dtype)
        own = shard(plan, 1, world)
        assert sum(isinstance(op, ops.Columns) for op in own.ops) == 4
        check(plan, lambda own: DummyWeights(own.weights, 3, dtype), True, [world])  # noqa: B023


def test_a_products_few_outputs_are_computed_by_all() -> None:
    spec = replace(make_spec(heads=(6, 6)), vocab_size=2)
    plan = shard(lower(spec), 2, 3)
    head = next(op for op in plan.ops if isinstance(op, ops.Linear) and op.out == "logits")
    assert head.n == 2


def test_a_share_needs_its_group() -> None:
    plan = shard(lower(make_spec()), 0, 2)
    with pytest.raises(ValueError, match="one rank's of several"):
        ReferenceExecutor(plan, DummyWeights(plan.weights, 3, "float32"), LIMITS)


@needs_native
def test_the_cpu_backend_refuses_a_share_without_its_group() -> None:
    plan = fuse(shard(lower(make_spec()), 0, 2))
    with pytest.raises(ConfigError, match="one rank's of several"):
        backend("cpu").bind(plan, DummyWeights(plan.weights, 3, "float32"), LIMITS)


def test_a_rank_that_fails_takes_the_others_along() -> None:
    def work(rank: ThreadRank) -> None:
        if rank.rank == 1:
            raise OSError("lost")
        with pytest.raises(RuntimeError, match="rank 0 waits for ranks that have failed"):
            rank.all_gather(np.zeros((1, 1), np.float32))

    with pytest.raises(OSError, match="lost"):
        in_ranks(2, work)
