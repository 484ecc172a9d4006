"""The arithmetic of a GPU's memory: what is reckoned is what binding allocates."""

from __future__ import annotations

import gc
from dataclasses import replace
from typing import Any

import pytest
from support.needs import Need, lacking

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="triton is not installed")

from support.tiny_plans import dummy_weights, make_spec  # noqa: E402

from penstock.backends.cuda.bind import bind  # noqa: E402
from penstock.backends.cuda.block_mover import staging_bytes  # noqa: E402
from penstock.backends.cuda.memory import (  # noqa: E402
    DRAFT_RESERVE,
    RANKS_RESERVE,
    RESERVE,
    divide,
    needs,
)
from penstock.backends.cuda.rank_memory import divide_among_ranks  # noqa: E402
from penstock.errors import ConfigError  # noqa: E402
from penstock.interface.adapters import AdapterSlots  # noqa: E402
from penstock.interface.executor import Limits  # noqa: E402
from penstock.plan.adapt import adapt, adapter_bytes  # noqa: E402
from penstock.plan.fuse import fuse  # noqa: E402
from penstock.plan.lower import lower  # noqa: E402
from penstock.plan.plan import Plan  # noqa: E402
from penstock.plan.ranks import rank_plans  # noqa: E402
from penstock.quant.choice import choose  # noqa: E402
from penstock.quant.scheme import Quantization  # noqa: E402

GIB = 1 << 30
SPEC = make_spec(bias=True, qk_norm=True)
LIMITS = Limits(num_blocks=0, max_tokens=32, max_logit_rows=32, max_sequences=4, threads=1)
NONE = choose("none", None, True)


def plan_with(quantization: Quantization) -> Plan:
    return fuse(lower(SPEC, "bfloat16", 512, quantization))


def tensor_bytes() -> dict[int, int]:
    """Bytes of the memory behind every tensor there is, by address."""
    tensors = [x for x in gc.get_objects() if type(x) is torch.Tensor]
    storages = [x.untyped_storage() for x in tensors]
    return {storage.data_ptr(): storage.nbytes() for storage in storages if storage.nbytes()}


@pytest.mark.thinned(3)
@pytest.mark.parametrize("slots", [None, AdapterSlots(3, 20)])
@pytest.mark.parametrize("name", ["none", "int4"])
def test_what_is_reckoned_is_what_binding_allocates(
    name: Any, slots: AdapterSlots | None, device: Any
) -> None:
    """But for attention's scratch, which is less where kernels are interpreted."""
    if device.type != "cpu":
        lacking(Need.INTERPRETER, "other tensors of a GPU's process come and go")
    plan = plan_with(choose(name, None, True, activations=False, window_columns=32))
    plan = plan if slots is None else adapt(plan, slots)
    need = needs(plan, LIMITS)
    gc.collect()
    before = tensor_bytes()
    executor = bind(plan, dummy_weights(SPEC, 0, "bfloat16"), LIMITS, device)
    gc.collect()
    kept = sum(size for at, size in tensor_bytes().items() if at not in before)
    pinned = 2 * executor._buffer._pinned.length * 4  # these are in the host's memory
    if executor.adapters is not None:
        pinned += 2 * executor.adapters._upload._pinned.length
        assert need.adapters == executor.adapters.nbytes > adapter_bytes(plan)
    attention = sum(kernel.scratch_bytes for kernel in executor._attention)
    reckoned = need.total - RESERVE - (kept - pinned)
    assert 0 <= reckoned <= 200 * attention
    assert need.weights + need.activations + need.adapters < kept - pinned


def test_adapters_that_take_too_much_are_named() -> None:
    plan = adapt(plan_with(NONE), AdapterSlots(1000, 256))
    need = needs(plan, LIMITS)
    assert need.adapters > GIB
    with pytest.raises(ConfigError, match=r"GiB of adapters, and .* fewer max_loras, or a lower"):
        divide(plan, plan_with, LIMITS, need.total - 1, None, 5000)


def test_a_draft_takes_its_part_before_the_cache() -> None:
    draft = needs(plan_with(NONE), replace(LIMITS, max_logit_rows=8))
    need = needs(plan_with(NONE), LIMITS)
    assert draft.total < need.total
    both = need.total + draft.total - RESERVE + DRAFT_RESERVE
    budget = divide(plan_with(NONE), plan_with, LIMITS, both + 1000, None, 5000, draft)
    assert (budget.kv_cache, budget.weights) == (1000, need.weights)
    assert "of the same for the draft, and 1.25 GiB kept free" in budget.why
    with pytest.raises(ConfigError, match=r"for the draft.* no draft model \(speculative ngram"):
        divide(plan_with(NONE), plan_with, LIMITS, both, None, 5000, draft)
    with pytest.raises(ConfigError, match="use a GPU with more memory"):
        divide(plan_with(NONE), plan_with, LIMITS, GIB // 4, None, 5000, draft)


def test_blocks_on_their_way_take_their_part_before_the_cache() -> None:
    plan, need = plan_with(NONE), needs(plan_with(NONE), LIMITS)
    copies = staging_bytes(plan.kv_groups.page_bytes)
    assert copies > 0
    budget = divide(plan, plan_with, LIMITS, need.total + copies + 1000, None, 5000, None, copies)
    assert (budget.kv_cache, budget.weights) == (1000, need.weights)
    assert "of blocks on their way" in budget.why
    with pytest.raises(ConfigError, match="of blocks on their way"):
        divide(plan, plan_with, LIMITS, need.total + copies, None, 5000, None, copies)


def test_the_cache_gets_what_is_left() -> None:
    need = needs(plan_with(NONE), LIMITS)
    free = need.total + 1000
    assert divide(plan_with(NONE), plan_with, LIMITS, free, None, 700).kv_cache == 700
    left = divide(plan_with(NONE), plan_with, LIMITS, free, None, 5000)
    assert left.kv_cache == 1000
    assert left.weights == need.weights
    assert "of weights" in left.why
    assert "kept free for kernels and CUDA graphs" in left.why
    assert divide(plan_with(NONE), plan_with, LIMITS, free, 1000, 5000).kv_cache == 1000


def test_too_little_is_one_error_with_the_arithmetic() -> None:
    need = needs(plan_with(NONE), LIMITS)
    with pytest.raises(
        ConfigError, match=r"the GPU has 0.25 GiB free, too little for .* of weights"
    ):
        divide(plan_with(NONE), plan_with, LIMITS, GIB // 4, None, 5000)
    with pytest.raises(ConfigError, match="use a GPU with more memory"):
        divide(plan_with(NONE), plan_with, LIMITS, GIB // 4, None, 5000)
    with pytest.raises(ConfigError, match="kv_cache_bytes of at most 999"):
        divide(plan_with(NONE), plan_with, LIMITS, need.total + 999, 1000, 5000)
    with pytest.raises(ConfigError, match=r"what helps: quantization int8 .* or quantization int4"):
        divide(plan_with(NONE), plan_with, LIMITS, need.total - 1, None, 5000)


def test_the_caches_of_ranks_fit_the_gpu_of_each() -> None:
    primitive = lower(make_spec(heads=(6, 3)), "bfloat16", 512)
    plans = rank_plans(primitive, fuse(primitive), 2)
    pages = [plan.kv_groups.page_bytes for plan in plans]
    assert pages[1] == 2 * pages[0]  # it has two of the KV heads
    every = [needs(plan, LIMITS) for plan in plans]
    assert every[0].reserve == RESERVE + RANKS_RESERVE
    free = every[1].total + 100_000 * pages[1] + 5
    budget = divide_among_ranks(plans, LIMITS, free, None, 1 << 40)
    blocks = budget.kv_cache // sum(pages)
    assert blocks == 100_000
    assert blocks * pages[0] < free - every[0].total
    assert budget.weights == sum(need.weights for need in every)
    assert "what is left on 2 GPUs of " in budget.why
    assert "on that of rank 1" in budget.why
    asked = blocks * sum(pages)
    assert divide_among_ranks(plans, LIMITS, free, asked, 5).kv_cache == asked
    assert divide_among_ranks(plans, LIMITS, free, None, 700).kv_cache == 700
    with pytest.raises(ConfigError, match=r"kv_cache_bytes of at most [\d,]+, or more ranks"):
        divide_among_ranks(plans, LIMITS, free, 2 * asked, 5)
    with pytest.raises(ConfigError, match=r"the GPU of each rank has 0.25 GiB free, too little on"):
        divide_among_ranks(plans, LIMITS, GIB // 4, None, 5)
