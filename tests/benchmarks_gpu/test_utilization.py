from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from gpu import utilization
from gpu.results import Decode, Host, Place, Prefill
from gpu.shape import SHAPES, bytes_needed, choose_shape
from gpu.workload import Size, mixed_lengths
from support.latents import over_latents
from support.tiny_plans import make_spec

from penstock.errors import ConfigError
from penstock.weights.model_folder import load_model_spec


def decode(step_s: float, weight_bytes: int = 900, kv_bytes: int = 100) -> Decode:
    return Decode(
        batch=2,
        context=8,
        step_s=step_s,
        step_s_median=step_s,
        weight_bytes=weight_bytes,
        kv_bytes=kv_bytes,
        device_s=step_s,
    )


def test_a_share_of_bandwidth_counts_weights_and_cache() -> None:
    assert utilization.of_bandwidth(decode(0.5), 4000.0) == pytest.approx(0.5)
    assert decode(0.5).tokens_per_s == 4


def test_a_share_of_the_matrix_rate_counts_products_and_attention() -> None:
    run = Prefill(tokens=4, seconds=2.0, seconds_median=3.0, linear_flops=600, attention_flops=200)
    assert utilization.of_matrix_rate(run, 1000.0) == pytest.approx(0.4)


def test_the_host_has_what_the_plan_does_not_take() -> None:
    host = Host(batch=4, step_s=2.0, device_s=1.5, processor_s=0.1)
    assert utilization.of_host(host) == pytest.approx(0.25)
    # The plan was measured by itself, and may have been slower than within a step.
    assert utilization.of_host(Host(batch=4, step_s=2.0, device_s=2.1, processor_s=0)) == 0


@pytest.mark.parametrize("window", [None, 3, 100])
def test_attention_multiplies_visible_pairs(window: int | None) -> None:
    spec = make_spec(window=window)
    tokens = 7
    pairs = sum(1 for q in range(tokens) for k in range(q + 1) if window is None or q - k < window)
    expected = 2 * pairs * 6 * 16 * 4  # layers, heads, columns; two products
    assert utilization.attention_flops(spec, tokens) == expected


def test_cache_bytes_are_those_read_and_the_one_written() -> None:
    spec = make_spec()
    per_token = 2 * 2 * 2 * 16 * 2  # layers, keys and values, heads, columns, bytes
    assert utilization.kv_bytes(spec, "bfloat16", [10, 20]) == 32 * per_token
    windowed = make_spec(window=12)
    assert utilization.kv_bytes(windowed, "bfloat16", [10, 20]) == (11 + 13) * per_token


def test_latents_are_read_once_for_all_heads() -> None:
    spec = over_latents(make_spec())
    row = 2 * 48 * 2  # layers, columns, bytes
    assert utilization.kv_bytes(spec, "bfloat16", [10, 20]) == 32 * row
    pairs = 7 * 8 // 2
    assert utilization.attention_flops(spec, 7) == 2 * 5 * 2 * (48 + 40) * pairs


def test_growth_is_what_cache_bytes_do_not_explain() -> None:
    explained = [Place(position=p, itl_s=1 + p / 100, kv_bytes=p) for p in (0, 10, 50)]
    assert utilization.growth(explained, 100.0) == pytest.approx(0)
    slower = [*explained, Place(position=60, itl_s=1.6 - 0.07, kv_bytes=60)]
    assert utilization.growth(slower, 100.0) == pytest.approx(-0.07)
    with pytest.raises(ValueError, match="two places"):
        utilization.growth(explained[:1], 100.0)


def test_an_option_costs_what_a_step_is_longer() -> None:
    assert utilization.cost(1.1, 1.0) == pytest.approx(0.1)


def test_the_largest_shape_that_fits_is_taken(configs: Path) -> None:
    needed = [bytes_needed(load_model_spec(configs / name)) for name in SHAPES]
    assert needed == sorted(needed, reverse=True)
    assert 25e9 < needed[0] < 36e9  # 16 GB of weights, 10 GB of cache, and some
    for name, size in zip(SHAPES, needed, strict=True):
        assert choose_shape(configs, size).name == name
    assert choose_shape(configs, needed[0] - 1).name == SHAPES[1]
    with pytest.raises(ConfigError, match=r"GiB are free.*end other programs"):
        choose_shape(configs, needed[-1] - 1)


def test_mixed_requests_fit_the_engine_and_are_the_same_every_time() -> None:
    size = Size()
    lengths = mixed_lengths(size)
    assert lengths == mixed_lengths(size)
    assert len(lengths) == 256
    assert {n.prompt for n in lengths} <= set(range(32, 1025))
    assert {n.output for n in lengths} <= set(range(32, 257))
    assert max(n.prompt + n.output for n in lengths) <= size.longest
    assert max(size.positions) + size.position_steps < size.longest
    assert size.quick().longest <= size.longest
    shorter = replace(size, prefill=64, positions=(8,))
    assert shorter.longest >= 1024 + 256
