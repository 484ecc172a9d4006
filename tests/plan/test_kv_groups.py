"""How cached layers are cut into groups."""

from __future__ import annotations

from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.tiny_plans import make_spec

from penstock.cache.geometry import (
    BLOCK_SIZE,
    Chunk,
    KvDType,
    Window,
    layer_block_bytes,
    sequence_blocks,
    tokens_in,
    unseen_from,
    window_blocks,
    window_size,
)
from penstock.plan.explain import explain
from penstock.plan.kv_groups import GROUP_COST, KvGroups, KvLayer, group_layers
from penstock.plan.lower import lower

LAYERS = st.builds(
    KvLayer,
    kv_heads=st.sampled_from([1, 2, 4]),
    head_dim=st.sampled_from([16, 24, 64]),
    window=st.sampled_from([None, None, 64, 512, Chunk(64)]),
)
WINDOWS = st.lists(
    st.none() | st.integers(1, 200) | st.builds(Chunk, st.integers(1, 200)), min_size=1, max_size=6
)


def cut(windows: list[Window | None], **changes: int) -> KvGroups:
    return group_layers([KvLayer(2, 16, w, **changes) for w in windows], "bfloat16")


def waste(groups: KvGroups, layers: list[KvLayer], dtype: KvDType) -> float:
    return len(groups) * groups.page_bytes / sum(x.block_bytes(dtype) for x in layers) - 1


@settings(deadline=None)
@given(layers=st.lists(LAYERS, min_size=1, max_size=40), dtype=st.sampled_from(["int8", "float32"]))
def test_every_layer_has_one_place_and_pages_hold_their_groups(
    layers: list[KvLayer], dtype: KvDType
) -> None:
    groups = group_layers(layers, dtype)
    assert sorted(n for group in groups for n in group.layers) == list(range(len(layers)))
    sizes = []
    for number, group in enumerate(groups):
        assert list(group.layers) == sorted(group.layers)
        offset = 0
        for index, layer in enumerate(group.layers):
            assert layers[layer].window == group.window
            place = groups.places[layer]
            assert (place.group, place.index, place.offset) == (number, index, offset)
            offset += layers[layer].block_bytes(dtype)
        sizes.append(offset)
    assert max(sizes) == groups.page_bytes
    # Longest lives first, and layers of one kind in the order of the model.
    lives = [float("inf") if w is None else window_size(w) for w in groups.windows]
    assert lives == sorted(lives, reverse=True)
    for window in set(groups.windows):
        own = [n for group in groups if group.window == window for n in group.layers]
        assert own == [n for n, layer in enumerate(layers) if layer.window == window]
    assert groups == group_layers(layers, dtype)


@settings(deadline=None)
@given(counts=st.lists(st.integers(1, 40), min_size=1, max_size=3))
def test_little_is_wasted(counts: list[int]) -> None:
    """No more than by any page of whole layers, groups counted: by one layer a page, nothing is."""
    windows = [None, 64, 512][: len(counts)]
    layers = [KvLayer(2, 16, w) for w, n in zip(windows, counts, strict=True) for _ in range(n)]
    groups = group_layers(layers, "bfloat16")

    def cost(kinds: list[int], page: int, number: int) -> float:
        full = -(-kinds[0] // page) * page / kinds[0] - 1
        whole = number * page / sum(kinds) - 1
        return (full + whole) / 2 + GROUP_COST * number

    page = groups.page_bytes // layers[0].block_bytes("bfloat16")
    paid = cost(counts, page, len(groups))
    for other in range(1, max(counts) + 1):
        assert paid <= cost(counts, other, sum(-(-n // other) for n in counts)) + 1e-9
    assert waste(groups, layers, "bfloat16") <= 2 * GROUP_COST * len(layers)


@pytest.mark.parametrize("window", [None, 7, 4096])
@pytest.mark.parametrize("count", [1, 2, 26, 80])
def test_layers_of_one_kind_are_one_group(window: int | None, count: int) -> None:
    groups = cut([window] * count)
    assert [group.layers for group in groups] == [tuple(range(count))]
    assert groups.windows == (window,)
    assert groups.page_bytes == count * layer_block_bytes("bfloat16", 2, 16)


@pytest.mark.parametrize(
    ("layers", "period", "per_page", "number"),
    [(26, 6, 4, 7), (34, 6, 5, 7), (48, 6, 8, 6), (62, 6, 10, 7), (24, 2, 12, 2)],
)
def test_models_that_alternate(layers: int, period: int, per_page: int, number: int) -> None:
    """The layers of Gemma 3, five of six with a window, and of gpt-oss, every other."""
    windows = [None if i % period == period - 1 else 512 for i in range(layers)]
    groups = cut(windows)
    assert len(groups) == number
    assert groups.page_bytes == per_page * layer_block_bytes("bfloat16", 2, 16)
    assert groups.windows == (None, *[512] * (number - 1))


def test_layers_of_two_sizes_fill_pages_of_one() -> None:
    """Twice the heads of half of the layers, as where full layers have fewer of them."""
    small, large = KvLayer(2, 64, None), KvLayer(4, 64, 512)
    groups = group_layers([small, large, small, large], "bfloat16")
    assert [group.layers for group in groups] == [(0, 2), (1,), (3,)]
    assert waste(groups, [small, large] * 2, "bfloat16") == 0
    assert [place.offset for place in groups.places] == [0, 0, small.block_bytes("bfloat16"), 0]


def test_values_may_be_within_the_keys() -> None:
    """A latent cache: one row a token, of which the values are the first components."""
    both = KvLayer(1, 64)
    for dtype, row in (("float32", 256), ("bfloat16", 128), ("float16", 128), ("int8", 68)):
        latent = KvLayer(1, 64, value_dim=48).block_bytes(cast(KvDType, dtype))
        assert latent == BLOCK_SIZE * row
        if dtype != "int8":  # which has a scale for the values, and one for the rest
            assert latent == both.block_bytes(cast(KvDType, dtype)) // 2
    assert KvLayer(1, 35, value_dim=33).block_bytes("bfloat16") == BLOCK_SIZE * 72


def test_a_plan_without_attention_has_no_groups() -> None:
    groups = group_layers((), "bfloat16")
    assert (len(groups), groups.page_bytes, groups.windows) == (0, 0, ())


def test_explain_names_groups_where_there_are_windows() -> None:
    assert "groups" not in explain(lower(make_spec()))
    text = explain(lower(make_spec(window=33)))
    assert "by groups of layers: 1 of 2 layers with a window of 33; pages of" in text


def seen_from(window: Window, position: int) -> int:
    if isinstance(window, Chunk):
        return position // window.size * window.size
    return max(position - window + 1, 0)


@given(windows=WINDOWS, tokens=st.integers(0, 2000))
def test_blocks_of_a_sequence_are_what_later_tokens_see(
    windows: list[Window | None], tokens: int
) -> None:
    blocks = 0
    for window in windows:
        places = -(-tokens // BLOCK_SIZE)
        if window is None:
            blocks += places
            continue
        most = window_blocks(window)
        first = [seen_from(window, p) for p in range(8000)]
        assert most == max(p // BLOCK_SIZE - first[p] // BLOCK_SIZE + 1 for p in range(8000))
        for block in range(5):
            unseen = unseen_from(window, block)
            assert first[unseen - 1] < (block + 1) * BLOCK_SIZE <= first[unseen]
        blocks += min(places, most)
    assert sequence_blocks(windows, tokens) == blocks


@given(windows=WINDOWS, blocks=st.integers(0, 80), most=st.integers(1, 1500))
def test_tokens_that_blocks_hold(windows: list[Window | None], blocks: int, most: int) -> None:
    held = tokens_in(windows, blocks, most)
    assert held % BLOCK_SIZE == 0
    assert held < most + BLOCK_SIZE
    assert sequence_blocks(windows, held) <= blocks
    if held < most:
        assert sequence_blocks(windows, held + 1) > blocks
