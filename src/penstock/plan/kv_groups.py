"""The KV groups of a plan: which layers share pages of the KV cache, and the size of a page.

Layers differ in how long they need a token's keys and values: one with a window forgets what lies
behind it. So blocks are handed out by *groups* of layers with equal lifetime, all from one pool of
ids: a block id is a *page* of a fixed number of bytes, which holds the keys and values of a block
of tokens in every layer of the group that it belongs to at the time. A model whose layers are all
of one kind has one group of all layers. The inputs that a convolution along the sequence reads
again are cached likewise, as rows, by a layer whose window is the convolution's.

For pages of one size, layers of one lifetime are cut into several groups where there are more of
them than of another. A group that does not fill its page wastes the rest of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from penstock.cache.geometry import (
    BLOCK_SIZE,
    Chunk,
    KvDType,
    Window,
    latent_block_bytes,
    layer_block_bytes,
    rows_block_bytes,
    window_size,
)
from penstock.models.spec import AttentionSpec, LayerSpec, ShortConvSpec

GROUP_COST = 0.01
"""Share of wasted memory that is accepted to have one group fewer. Each has tables of its own,
which the host builds and sends with every step: about 2 us for 64 sequences."""


LEAST_ROWS = 8
"""Rows that a layer of rows keeps of each block at least. Convolutions of three tokens then have
room for drafts of five: shorter ones change nothing of the cache."""


@dataclass(frozen=True)
class KvLayer:
    """Geometry and lifetime of one layer's cache: keys and values, latents, or rows."""

    kv_heads: int
    head_dim: int
    window: Window | None = None
    """What a query sees; None: all positions up to its own."""
    value_dim: int | None = None
    """Components of a value where there are no values beside the keys, whose first components they
    are (a latent cache, of one head); None: values are cached, of ``head_dim`` components."""
    rows: int | None = None
    """Where rows are cached, one of ``head_dim`` numbers for each token: how many of a block's are
    kept. Slot s of a block has row ``s % rows``, so that those of its last tokens are there."""

    def block_bytes(self, dtype: KvDType) -> int:
        """Bytes of a block's keys and values, latents or rows."""
        if self.rows is not None:
            return rows_block_bytes(dtype, self.rows, self.head_dim)
        if self.value_dim is None:
            return layer_block_bytes(dtype, self.kv_heads, self.head_dim)
        return latent_block_bytes(dtype, self.value_dim, self.head_dim - self.value_dim)


@dataclass(frozen=True)
class KvGroup:
    """Layers whose keys and values of a block of tokens lie in one page."""

    window: Window | None
    """What the layers still see of a sequence; None: all."""
    layers: tuple[int, ...]
    """Numbers of cached layers (``Plan.kv_layers``), ascending, in the order of the page."""


@dataclass(frozen=True)
class KvPlace:
    """The place of a layer in the pages of the cache."""

    group: int
    index: int
    """Number of the layers before it in the page."""
    offset: int
    """Bytes of these."""


@dataclass(frozen=True)
class KvGroups:
    """The groups of a plan, those without a window first, and the size of their pages."""

    groups: tuple[KvGroup, ...]
    page_bytes: int
    places: tuple[KvPlace, ...]
    """The place of each cached layer."""

    def __len__(self) -> int:
        return len(self.groups)

    def __iter__(self) -> Iterator[KvGroup]:
        return iter(self.groups)

    @property
    def windows(self) -> tuple[Window | None, ...]:
        """The window of each group."""
        return tuple(group.window for group in self.groups)


def kv_layers(layers: Sequence[LayerSpec], taken_back: int | None = None) -> tuple[KvLayer, ...]:
    """Return the cached layers of a model: all that mix tokens but those that read another layer's
    keys and values.

    ``taken_back``: how many of a sequence's latest tokens may be computed again, by others or the
    same; None: any number.
    """
    cached: list[KvLayer] = []
    for mixer in (mixer for layer in layers for mixer in layer.mixers):
        if isinstance(mixer, ShortConvSpec):
            rows = kept_rows(mixer.kernel, taken_back)
            cached.append(KvLayer(1, mixer.size, mixer.kernel, rows=rows))
        elif isinstance(mixer, AttentionSpec) and mixer.kv_from is None:
            latent = None if mixer.latent is None else mixer.latent.kv_rank
            cached.append(KvLayer(mixer.num_kv_heads, mixer.head_dim, mixer.window, latent))
    return tuple(cached)


def kept_rows(window: int, taken_back: int | None) -> int:
    """Return how many rows of a block a layer keeps of whose tokens each sees the rows of
    ``window``, itself included.

    A token's row takes the place of the one that many tokens before it in its block. When
    ``taken_back`` tokens are computed again, the ``window - 1`` rows before them must not have been
    overwritten by theirs, so there are places for all of these. A block that keeps every row
    overwrites none.
    """
    if taken_back is None:
        return BLOCK_SIZE
    rows = -(-(window - 1 + taken_back) // 4) * 4
    return min(max(rows, LEAST_ROWS), BLOCK_SIZE)


def group_layers(layers: Sequence[KvLayer], dtype: KvDType) -> KvGroups:
    """Cut cached layers into groups of equal lifetime, so that the least memory is wasted, counting
    :data:`GROUP_COST` for each group.

    Waste is the mean of what is wasted while contexts are shorter than all windows, and of what is
    wasted when they are much longer, which is that of groups without a window.
    """
    sizes = [layer.block_bytes(dtype) for layer in layers]
    lives: dict[Window | None, list[int]] = {}
    for number, layer in enumerate(layers):
        lives.setdefault(layer.window, []).append(number)
    # The longest lives first: None, then windows from the widest to the narrowest.
    kinds = [lives[window] for window in sorted(lives, key=_order)]
    if not kinds:
        return KvGroups((), 0, ())
    best: list[list[int]] = []
    least = float("inf")
    for page in sorted(_pages(kinds, sizes), reverse=True):
        runs = [_runs(kind, sizes, page) for kind in kinds]
        cost = _cost(runs, sizes, page)
        if cost < least:
            best, least = [run for kind in runs for run in kind], cost
    return groups_of(layers, best, dtype)


def groups_of(layers: Sequence[KvLayer], runs: Sequence[Sequence[int]], dtype: KvDType) -> KvGroups:
    """Return the groups of cached layers whose numbers are ``runs``, those of a group alike in what
    they see, with pages as large as the largest needs."""
    if not runs:
        return KvGroups((), 0, ())
    sizes = [layer.block_bytes(dtype) for layer in layers]
    places: list[KvPlace | None] = [None] * len(layers)
    for group, run in enumerate(runs):
        offset = 0
        for index, number in enumerate(run):
            places[number] = KvPlace(group, index, offset)
            offset += sizes[number]
    groups = tuple(KvGroup(layers[run[0]].window, tuple(run)) for run in runs)
    page = max(sum(sizes[number] for number in run) for run in runs)
    return KvGroups(groups, page, tuple(place for place in places if place is not None))


def _order(window: Window | None) -> tuple[bool, int, bool]:
    size = 0 if window is None else window_size(window)
    return window is not None, -size, isinstance(window, Chunk)


def _pages(kinds: Iterable[Sequence[int]], sizes: Sequence[int]) -> set[int]:
    """Return the sizes of pages to try: those of runs of layers that fit every layer."""
    found: set[int] = set()
    for kind in kinds:
        for first in range(len(kind)):
            size = 0
            for number in kind[first:]:
                size += sizes[number]
                found.add(size)
    return {size for size in found if size >= max(sizes)}


def _runs(kind: Sequence[int], sizes: Sequence[int], page: int) -> list[list[int]]:
    """Cut layers of one lifetime into runs, filling one page after the other."""
    runs: list[list[int]] = []
    free = 0
    for number in kind:
        if sizes[number] > free:
            runs.append([])
            free = page
        runs[-1].append(number)
        free -= sizes[number]
    return runs


def _cost(runs: Sequence[Sequence[Sequence[int]]], sizes: Sequence[int], page: int) -> float:
    def waste(kinds: Sequence[Sequence[Sequence[int]]]) -> float:
        used = sum(sizes[number] for kind in kinds for run in kind for number in run)
        return sum(map(len, kinds)) * page / used - 1

    return (waste(runs) + waste(runs[:1])) / 2 + GROUP_COST * sum(map(len, runs))
