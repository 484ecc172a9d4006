"""Attention over latents beside NumPy's, and the promise that a row is bitwise its own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="triton is not installed")

from support.attention_parts import Part, sequence  # noqa: E402
from support.cuda_attention import Shape, assert_close, launch, make, run  # noqa: E402
from support.draft_trees import line_of, make_tree, parents_of, positions_of  # noqa: E402

from penstock.backends.cuda.attention import Scores  # noqa: E402
from penstock.backends.cuda.latent_tiling import latent_tiling  # noqa: E402
from penstock.backends.cuda.pages import LATENT_TYPES  # noqa: E402
from penstock.cache.geometry import Chunk, KvDType, Window  # noqa: E402

# The interpreter is NumPy: it says so where infinities meet, as they do in rows that are not used.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter")


def latents(
    heads: int = 5,
    value_dim: int = 40,
    tail: int = 8,
    kv: KvDType = "bfloat16",
    window: Window | None = None,
) -> Shape:
    return Shape(heads, 1, value_dim + tail, kv, window, value_dim=value_dim)


def ragged(shape: Shape, seed: int) -> list[Part]:
    """Prefill chunks and decodes of lengths around the sizes of blocks, tiles and splits."""
    ends = [(0, 1), (0, 33), (31, 32), (60, 65), (511, 512), (512, 513), (1023, 1025)]
    return [Part(sequence(shape, end, seed + i), start, end) for i, (start, end) in enumerate(ends)]


@pytest.mark.thinned(5)
@pytest.mark.parametrize(
    "shape",
    [
        latents(kv="float32"),
        latents(16, 512, 64),
        latents(20, 512, 64, "int8"),
        latents(40, 256, 32, "float16"),
        latents(7, 34, 2, "int8"),
        latents(1, 1, 1, "float32"),
        latents(3, 50, 128, "float32"),
    ],
)
def test_sizes(shape: Shape, device: Any) -> None:
    parts = ragged(shape, shape.head_dim)
    for part, rows in zip(parts, run(device, shape, parts), strict=True):
        assert rows.shape == (part.end - part.start, shape.heads, shape.value_dim)
        assert_close(shape, part, rows)


@pytest.mark.slow
@pytest.mark.parametrize("heads", [128, pytest.param(67, marks=pytest.mark.slow)])
def test_heads_of_several_groups_read_one_cache(heads: int, device: Any) -> None:
    """More heads than a tile has rows, and a number of them that no tile divides."""
    shape = latents(heads, kv="float32")
    parts = ragged(shape, heads)[1:4]
    for part, rows in zip(parts, run(device, shape, parts), strict=True):
        assert_close(shape, part, rows)


@pytest.mark.parametrize("window", [33, 600, Chunk(50)])
def test_windows(window: Window, device: Any) -> None:
    shape = latents(window=window)
    parts = ragged(shape, 3)
    for part, rows in zip(parts, run(device, shape, parts), strict=True):
        assert_close(shape, part, rows)


def test_scores_of_every_kind(device: Any) -> None:
    shape = latents(kv="int8")
    drawn = torch.rand(2, 5, generator=torch.Generator().manual_seed(1)).to(device)
    scores = Scores(3.0, drawn[0] / 4, 5 * drawn[1] - 1)
    parts = ragged(shape, 5)[:4]
    for part, rows in zip(parts, run(device, shape, parts, scores=scores), strict=True):
        assert_close(shape, part, rows, scores)


@pytest.mark.slow
@pytest.mark.parametrize("kv", LATENT_TYPES)
def test_who_computes_the_splits_changes_nothing(device: Any, kv: KvDType) -> None:
    shape = latents(kv=kv)
    parts = [
        Part(sequence(shape, end, end), start, end) for start, end in ((512, 513), (1100, 1104))
    ]
    kernel = shape.kernel(device, programs=64)
    cache, step = make(shape, parts, device)
    work = kernel.plan_work(step)
    assert work[1:, 6].max() > 1
    split = launch(kernel, shape, parts, cache, step, work)
    again = launch(kernel, shape, parts, cache, step, work)
    whole_work = replace(kernel.planner, capacity=0).plan(step)
    whole = launch(kernel, shape, parts, cache, step, whole_work)
    for rows in zip(split, again, whole, strict=True):
        for same in rows[1:]:
            np.testing.assert_array_equal(rows[0].view(np.uint32), same.view(np.uint32))


@pytest.mark.slow
@pytest.mark.thinned(3)
@pytest.mark.parametrize("kv", LATENT_TYPES)
def test_neither_company_nor_chunking_changes_anything(device: Any, kv: KvDType) -> None:
    shape = latents(kv=kv)
    whole = Part(sequence(shape, 130, 1), 0, 130)
    others = ragged(shape, 9)[2:5]
    (rows, *_) = run(device, shape, [whole, *others], programs=7)
    for start, end in ((0, 1), (20, 65), (64, 65), (129, 130)):
        (some,) = run(device, shape, [Part(whole.sequence, start, end)], seed=end)
        np.testing.assert_array_equal(some.view(np.uint32), rows[start:end].view(np.uint32))


@pytest.mark.parametrize(("kv", "start"), [("bfloat16", 57), ("int8", 511)])
def test_a_row_of_a_tree_is_a_decoded_token(device: Any, kv: KvDType, start: int) -> None:
    shape = latents(kv=kv)
    tree = make_tree(shape, start, [-1, 0, 0, 1, 2, 4, 4, 3], 4)
    kernel = shape.kernel(device)
    cache, step = make(shape, [tree], device)
    step = replace(step, positions=positions_of(tree), tree_parents=parents_of([tree]))
    (rows,) = launch(kernel, shape, [tree], cache, step, kernel.plan_work(step))
    for row, (line,) in enumerate(
        [run(device, shape, [line_of(tree, row)]) for row in range(len(tree.parents))]
    ):
        np.testing.assert_array_equal(rows[row].view(np.uint32), line[0].view(np.uint32))


@pytest.mark.parametrize("kv", LATENT_TYPES)
@pytest.mark.parametrize("component", [3, 44])
def test_a_token_that_is_not_finite_reaches_those_who_see_it(
    device: Any, kv: KvDType, component: int
) -> None:
    """A NaN reaches neither other sequences nor earlier queries, be it in the latent or behind
    it."""
    shape = latents(2, kv=kv)
    s = sequence(shape, 80, 4)
    bad = replace(s, k=s.k.copy())
    bad.k[65, 0, component] = np.nan
    (clean,) = run(device, shape, [Part(s, 50, 80)])
    (rows,) = run(device, shape, [Part(bad, 50, 80)])
    np.testing.assert_array_equal(rows[:15], clean[:15])
    assert np.isnan(rows[15:]).all()


@pytest.mark.parametrize("capability", [(8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0)])
@pytest.mark.parametrize("product_bytes", [2, 4])
def test_groups_share_out_all_heads(capability: tuple[int, int], product_bytes: int) -> None:
    for heads in (1, 5, 16, 20, 40, 67, 128):
        tiling = latent_tiling(heads, 256, product_bytes, capability)
        assert heads % tiling.groups == 0
        assert heads // tiling.groups <= tiling.rows


def test_float32_latents_that_do_not_fit_a_gpu_are_refused() -> None:
    for capability in ((8, 9), (12, 0)):
        latent_tiling(16, 512, 2, capability)
        with pytest.raises(ValueError, match=r"latents of 512 in float32.*--kv-cache-dtype"):
            latent_tiling(16, 512, 4, capability)
    for capability in ((8, 0), (9, 0), (10, 0)):
        latent_tiling(16, 512, 4, capability)
