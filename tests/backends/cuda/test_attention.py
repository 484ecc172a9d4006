"""Paged attention beside NumPy's, and the promise that a row is bitwise its own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="triton is not installed")

from support.attention_parts import Part, sequence  # noqa: E402
from support.cuda_attention import (  # noqa: E402
    Shape,
    assert_close,
    expected,
    launch,
    make,
    run,
)

from penstock.backends.cuda.attention import AttentionKernel  # noqa: E402
from penstock.backends.reference.numerics import as_bfloat16  # noqa: E402
from penstock.cache.geometry import Chunk, KvDType, Window  # noqa: E402

# The interpreter is NumPy: it says so where infinities meet, as they do in rows that are not used.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter")

KV: list[KvDType] = ["bfloat16", "float16", "float32", "int8", "fp8", "k8v4", "int4"]


def ragged(shape: Shape, seed: int) -> list[Part]:
    """Prefill chunks and decodes of lengths around the sizes of blocks, tiles and splits."""
    ends = [(0, 1), (0, 33), (31, 32), (60, 65), (250, 257), (255, 256), (256, 257), (511, 513)]
    return [Part(sequence(shape, end, seed + i), start, end) for i, (start, end) in enumerate(ends)]


def check(device: Any, shape: Shape, parts: list[Part]) -> None:
    for part, rows in zip(parts, run(device, shape, parts), strict=True):
        assert_close(shape, part, rows)


@pytest.mark.thinned(5)
@pytest.mark.parametrize(
    ("head_dim", "kv"),
    [
        (16, "float32"),
        (50, "int8"),
        (64, "bfloat16"),
        (80, "bfloat16"),
        (96, "float16"),
        (128, "int8"),
        (256, "bfloat16"),
        (256, "float32"),
        (64, "int4"),
        (80, "int4"),
        (50, "k8v4"),
        (128, "k8v4"),
        (50, "fp8"),
        (96, "fp8"),
    ],
)
def test_head_dims(device: Any, head_dim: int, kv: KvDType) -> None:
    shape = Shape(2, 1, head_dim, kv)
    check(device, shape, ragged(shape, head_dim))


@pytest.mark.thinned(3)
@pytest.mark.parametrize(("heads", "kv_heads"), [(3, 3), (7, 1), (40, 1), (71, 1)])
def test_groups(device: Any, heads: int, kv_heads: int) -> None:
    shape = Shape(heads, kv_heads, 16, "float32")
    check(device, shape, ragged(shape, heads)[1:6])


@pytest.mark.thinned(3)
@pytest.mark.parametrize(
    ("window", "kv"),
    [
        (1, "bfloat16"),
        (7, "int8"),
        (33, "float32"),
        (64, "bfloat16"),
        (100, "float16"),
        (300, "int8"),
        (1000, "bfloat16"),
        (33, "int4"),
        (300, "k8v4"),
        (100, "fp8"),
        (Chunk(1), "bfloat16"),
        (Chunk(33), "float32"),
        (Chunk(64), "int8"),
        (Chunk(250), "bfloat16"),
        (Chunk(1000), "float16"),
    ],
)
def test_windows(device: Any, window: Window, kv: KvDType) -> None:
    shape = Shape(2, 1, 16, kv, window)
    check(device, shape, ragged(shape, 7))


def test_tiles_across_the_border_of_chunks(device: Any) -> None:
    """Rows of one tile see keys of two chunks, or of three, and of theirs alone."""
    for chunk, start, end in ((20, 0, 64), (70, 50, 300), (300, 290, 320)):
        shape = Shape(2, 1, 16, "float32", Chunk(chunk))
        check(device, shape, [Part(sequence(shape, end, end), start, end)])


@pytest.mark.thinned(3)
@pytest.mark.parametrize("kv", KV)
def test_bfloat16_activations_are_the_same_result_rounded(device: Any, kv: KvDType) -> None:
    wide = Shape(kv=kv)
    narrow = replace(wide, activation="bfloat16")
    s, t = (sequence(wide, n, n) for n in (70, 300))
    parts = [
        Part(replace(s, q=as_bfloat16(s.q)), 66, 70),
        Part(replace(t, q=as_bfloat16(t.q)), 299, 300),
    ]
    for a, b in zip(run(device, wide, parts), run(device, narrow, parts), strict=True):
        np.testing.assert_array_equal(b, torch.from_numpy(a).to(torch.bfloat16).float().numpy())


def test_long_contexts_of_many_splits(device: Any) -> None:
    """Past 16 splits of 256 they grow; all parts of a lone decode row lie in scratch."""
    shape = Shape(2, 1, 16, "bfloat16")
    parts = [Part(sequence(shape, 5300, 1), 5299, 5300)]
    kernel = shape.kernel(device)
    cache, step = make(shape, parts, device)
    work = kernel.plan_work(step)
    assert work[0, 0] == 19
    (rows,) = launch(kernel, shape, parts, cache, step, work)
    assert_close(shape, parts[0], rows)


def whole_tiles(kernel: AttentionKernel, step: Any) -> Any:
    return replace(kernel.planner, capacity=0).plan(step)


@pytest.mark.thinned(3)
@pytest.mark.parametrize(
    ("window", "kv"), [(None, "bfloat16"), (300, "int8"), (None, "float32"), (300, "float16")]
)
def test_who_computes_the_splits_changes_nothing(
    device: Any, kv: KvDType, window: int | None
) -> None:
    shape = Shape(2, 1, 16, kv, window)
    parts = [Part(sequence(shape, end, end), start, end) for start, end in ((256, 257), (700, 710))]
    kernel = shape.kernel(device, programs=64)
    cache, step = make(shape, parts, device)
    work = kernel.plan_work(step)
    assert work[1:, 6].max() > 1
    split = launch(kernel, shape, parts, cache, step, work)
    # Counts have gone back to zero: a second launch finds the last of each tile again.
    again = launch(kernel, shape, parts, cache, step, work)
    whole = launch(kernel, shape, parts, cache, step, whole_tiles(kernel, step))
    # Items are independent: any order of a list is the list.
    shuffled = work.copy()
    shuffled[1:] = np.random.default_rng(0).permutation(work[1:])
    other = launch(kernel, shape, parts, cache, step, shuffled)
    for rows in zip(split, again, whole, other, strict=True):
        for same in rows[1:]:
            np.testing.assert_array_equal(rows[0].view(np.uint32), same.view(np.uint32))


@pytest.mark.thinned(7)
@pytest.mark.parametrize(
    ("window", "chunk", "kv"),
    [
        (None, 1, "bfloat16"),
        (None, 1, "float32"),
        (None, 7, "int8"),
        (20, 33, "float16"),
        (280, 1, "int8"),
        (280, 9, "bfloat16"),
        (Chunk(100), 1, "bfloat16"),
        (Chunk(60), 33, "int8"),
    ],
)
def test_chunking_changes_nothing(
    device: Any, chunk: int, window: Window | None, kv: KvDType
) -> None:
    shape = Shape(3, 1, 16, kv, window)
    n = 310
    s = sequence(shape, n, chunk)
    (whole,) = run(device, shape, [Part(s, 0, n)])
    ends = [1, 64, 65, 256, 257, n] if chunk == 1 else [50, 129, 260, n]
    for end in ends:
        start = max(0, end - chunk)
        (rows,) = run(device, shape, [Part(s, start, end)], seed=end, programs=1 + end % 90)
        np.testing.assert_array_equal(rows.view(np.uint32), whole[start:end].view(np.uint32))


@pytest.mark.thinned(3)
@pytest.mark.parametrize(("head_dim", "kv"), [(50, "int8"), (128, "bfloat16"), (64, "float32")])
def test_company_changes_nothing(device: Any, head_dim: int, kv: KvDType) -> None:
    shape = Shape(3, 1, head_dim, kv)
    parts = ragged(shape, 77)[1:-1]
    order = np.random.default_rng(3).permutation(len(parts))
    together = run(device, shape, [parts[i] for i in order], seed=9)
    for i, rows in zip(order, together, strict=True):
        (alone,) = run(device, shape, [parts[i]], seed=int(i), programs=40)
        np.testing.assert_array_equal(rows.view(np.uint32), alone.view(np.uint32))


@pytest.mark.slow
@pytest.mark.parametrize("kv", ["bfloat16", "int8"])
def test_as_many_of_one_length_as_there_may_be_change_nothing(device: Any, kv: KvDType) -> None:
    """Tiles stay whole in one company and are split in another, by what balances programs."""
    shape = Shape(3, 1, 16, kv)
    first = Part(sequence(shape, 700, 1), 699, 700)
    split = set()
    bits = set()
    for count in (1, 4, 5, 8, 11):
        parts = [first, *(Part(sequence(shape, 700, n), 699, 700) for n in range(2, count + 1))]
        kernel = shape.kernel(device, programs=4)
        cache, step = make(shape, parts, device)
        work = kernel.plan_work(step)
        split |= set(work[1:, 6][work[1:, 0] == 0].tolist())
        rows = launch(kernel, shape, parts, cache, step, work)[0]
        bits.add(rows.tobytes())
    assert split == {1, 3}
    assert len(bits) == 1


@pytest.mark.thinned(5)
@pytest.mark.parametrize(
    ("where", "bad_value", "kv"),
    [
        ("k", np.nan, "bfloat16"),
        ("k", np.nan, "int8"),
        ("v", np.nan, "bfloat16"),
        ("v", np.inf, "float16"),
        ("v", np.nan, "int8"),
        ("v", np.inf, "float32"),
    ],
)
def test_a_token_that_is_not_finite_reaches_those_who_see_it(
    device: Any, where: str, bad_value: float, kv: KvDType
) -> None:
    """And no earlier query of its own chunk, whose blocks other sequences may come to share."""
    shape = Shape(2, 1, 16, kv)
    s = sequence(shape, 280, 4)
    bad = replace(s, **{where: getattr(s, where).copy()})
    getattr(bad, where)[265, 0, 3] = bad_value
    (clean,) = run(device, shape, [Part(s, 250, 280)])
    (rows,) = run(device, shape, [Part(bad, 250, 280)])
    np.testing.assert_array_equal(rows[:15], clean[:15])
    if where == "v" and kv != "int8":
        assert not np.isfinite(rows[15:, :, 3]).any()
        np.testing.assert_array_equal(np.delete(rows, 3, 2), np.delete(clean, 3, 2))
    else:
        assert np.isnan(rows[15:]).all()
    (alone,) = run(device, shape, [Part(bad, 265, 266)])
    np.testing.assert_array_equal(alone[0], rows[15])


def test_queries_are_rows_of_their_own(device: Any) -> None:
    """A query that is not finite spoils its own head of its own token."""
    shape = Shape(4, 2, 16, "bfloat16")
    s = sequence(shape, 300, 4)
    bad = replace(s, q=s.q.copy())
    bad.q[290, 1, 5] = np.nan
    (clean,) = run(device, shape, [Part(s, 280, 300)])
    (rows,) = run(device, shape, [Part(bad, 280, 300)])
    assert np.isnan(rows[10, 1]).all()
    rows[10, 1] = clean[10, 1]
    np.testing.assert_array_equal(rows, clean)


def test_rows_past_the_step_are_left_alone(device: Any) -> None:
    """A captured step has more rows, and a longer work list, than what it runs."""
    shape = Shape(2, 1, 16, "float32")
    parts = [Part(sequence(shape, 40, 1), 39, 40)]
    kernel = shape.kernel(device)
    cache, step = make(shape, parts, device)
    longer = [*parts, Part(parts[0].sequence, 35, 40)]
    padded = np.full(kernel.work_shape, 2**30, np.int32)
    work = kernel.plan_work(step)
    padded[: len(work)] = work
    padded_step = replace(step, query_starts=np.array([0, 1, 6], np.int32))
    rows, rest = launch(kernel, shape, longer, cache, padded_step, padded)
    np.testing.assert_allclose(rows, expected(shape, parts[0]), rtol=1e-4, atol=1e-5)
    assert (rest == -1).all()


@pytest.mark.parametrize("max_tokens", [1, 40])
def test_work_and_scratch_are_bounded(device: Any, max_tokens: int) -> None:
    """Whatever the step, also without a device to count multiprocessors of."""
    kernel = AttentionKernel(6, 2, 16, 0.25, None, max_tokens, 3, 900, device, 500)
    shape = Shape(6, 2, 16)
    lengths = [(900, 1)] * min(3, max_tokens) if max_tokens == 1 else [(900, 38), (900, 1), (1, 1)]
    parts = [Part(sequence(shape, end, 1), end - n, end) for end, n in lengths]
    work = kernel.plan_work(make(shape, parts, device)[1])
    assert len(work) <= kernel.work_shape[0]
    assert work.shape[1] == kernel.work_shape[1]
    counted = AttentionKernel(6, 2, 16, 0.25, None, max_tokens, 3, 900, torch.device("meta"))
    assert counted.scratch_bytes >= shape.kernel(device).scratch_bytes


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kv_heads": 3}, "4 query heads are not a multiple of 3 KV heads"),
        ({"head_dim": 7}, "a head of 7 is outside 8..256"),
        ({"head_dim": 257}, "a head of 257 is outside 8..256"),
        ({"scale": 0.0}, "a scale of scores of 0.0 is not positive"),
        ({"scale": float("nan")}, "a scale of scores of nan is not positive"),
        ({"window": 0}, "a window of 0 shows no token"),
        ({"window": Chunk(0)}, "shows no token"),
        ({"value_dim": 8}, "2 latents of 8 in 16 have no kernel"),
        ({"kv_heads": 1, "head_dim": 514, "value_dim": 513}, "1 latents of 513 in 514"),
        ({"kv_heads": 1, "value_dim": 16}, "1 latents of 16 in 16"),
    ],
)
def test_refuses_impossible_geometry(device: Any, change: dict[str, Any], message: str) -> None:
    geometry: dict[str, Any] = {
        "heads": 4,
        "kv_heads": 2,
        "head_dim": 16,
        "scale": 0.25,
        "window": None,
        "max_tokens": 8,
        "max_sequences": 2,
        "max_context": 64,
    }
    with pytest.raises(ValueError, match=message):
        AttentionKernel(**{**geometry, **change}, device=device)
