"""The single kernels take no arrays that disagree: they are tried on anything by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.native_arrays import as_bytes


def zeros(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.zeros(shape, dtype)


def floats(count: int) -> np.ndarray:
    """So many float32 as bytes."""
    return zeros(4 * count, dtype=np.uint8)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def refuses(kernel: Callable[..., object], whole: dict[str, Any], changes: dict[str, Any]) -> None:
    """The arguments are taken as they are, and not with these changes."""
    kernel(**whole)
    with pytest.raises(ValueError, match=r"."):
        kernel(**(whole | changes))


PRODUCT: dict[str, Any] = {
    "bias": None,
    "gate": "none",
    "x_elem": "float32",
    "out": floats(3 * 4),
    "out_elem": "float32",
    "threads": 2,
}
"""Three rows of four columns, of anything."""
LINEAR = PRODUCT | {
    "parts": [(floats(4 * 8), 4)],
    "elem": "float32",
    "k": 8,
    "x": floats(3 * 8),
}


@pytest.mark.parametrize(
    "changes",
    [
        {"k": 0},
        {"k": -8},
        {"k": 2**61},
        {"k": 7},
        {"x_elem": "float16"},
        {"x_elem": "int32"},
        {"out_elem": "float16"},
        {"elem": "int32"},
        {"parts": []},
        {"parts": [(floats(0), 0)]},
        {"parts": [(floats(4 * 8), -4)]},
        {"parts": [(floats(4 * 8), 5)]},
        {"parts": [(floats(4 * 8), 4), (floats(0), 0)]},
        {"parts": [(floats(4 * 8), 4)] * 3, "gate": "silu"},
        {"x": floats(3 * 8)[:-1]},
        {"out": floats(3 * 4 + 1)},
        {"bias": zeros(3)},
        {"threads": 0},
        {"threads": -1},
    ],
    ids=str,
)
def test_linear(one_module: Any, changes: dict[str, Any]) -> None:
    refuses(one_module.linear, LINEAR, changes)


INT = PRODUCT | {
    "parts": [(zeros(4, 64, dtype=np.int8), zeros(4, 2), None)],
    "bits": 8,
    "group": 32,
    "x": floats(3 * 64),
}


@pytest.mark.parametrize(
    "changes",
    [
        {"group": -32},
        {"group": 2**40},
        {"bits": 5},
        {"parts": []},
        {"parts": [(zeros(4, 0, dtype=np.int8), zeros(4, 1), None)], "group": 0},
        {"parts": [(zeros(0, 64, dtype=np.int8), zeros(0, 2), None)], "out": floats(0)},
        {"parts": [(zeros(4, 64, dtype=np.int8), zeros(4, 1), None)]},
        {"parts": [(zeros(4, 64, dtype=np.int8), zeros(4, 2), zeros(4, 1, dtype=np.int8))]},
        {"x_elem": "float16"},
        {"out": floats(3 * 4 - 1)},
        {"threads": 0},
    ],
    ids=str,
)
def test_int_linear(one_module: Any, changes: dict[str, Any]) -> None:
    refuses(one_module.int_linear, INT, changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"parts": [(zeros(4, 0, dtype=np.int8), zeros(0, 0, dtype=np.uint8), zeros(4))]},
        {"parts": [(zeros(0, 64, dtype=np.int8), zeros(0, 0, dtype=np.uint8), zeros(0))]},
        {"parts": [(zeros(4, 64, dtype=np.int8), zeros(0, 0, dtype=np.uint8), zeros(3))]},
        {
            "parts": [(zeros(4, 64, dtype=np.int8), zeros(4, 1, dtype=np.uint8), zeros(4))],
            "bits": 4,
        },
        {"x": floats(3 * 64 + 1)},
        {"out_elem": "int32"},
    ],
    ids=str,
)
def test_grid_linear(one_module: Any, changes: dict[str, Any]) -> None:
    whole = {name: value for name, value in INT.items() if name != "group"}
    whole["parts"] = [(zeros(4, 64, dtype=np.int8), zeros(0, 0, dtype=np.uint8), zeros(4))]
    refuses(one_module.grid_linear, whole, changes)


def test_quantize_grid(one_module: Any) -> None:
    def run(bits: int, elem: str, n: int, k: int) -> bool:
        groups = -(-k // 16) if bits == 4 else 0
        return bool(
            one_module.quantize_grid(
                rows=zeros(n * k * 4, dtype=np.uint8),
                elem=elem,
                bits=bits,
                transformed=False,
                codes=zeros(n, k, dtype=np.int8),
                windows=zeros(n, groups, dtype=np.uint8),
                scales=zeros(n),
            )
        )

    assert run(4, "float32", 2, 40)
    for bits, elem, k in ((5, "float32", 40), (8, "int32", 40), (8, "float32", 0)):
        with pytest.raises(ValueError, match=r"."):
            run(bits, elem, 2, k)


@pytest.mark.parametrize("elem", ["float32", "bfloat16", "float16"])
def test_quantize_grid_of_rows_at_odd_addresses(one_module: Any, elem: str) -> None:
    """Weights are views into files; reading them as if they were aligned is not defined."""
    size = 4 if elem == "float32" else 2
    values = np.random.default_rng(1).integers(0, 60, 2 * 40 * size + 1, np.uint8)
    results = []
    for rows in (values[1:], values[1:].copy()):
        codes, scales = zeros(2, 40, dtype=np.int8), zeros(2)
        one_module.quantize_grid(
            rows=rows,
            elem=elem,
            bits=8,
            transformed=False,
            codes=codes,
            windows=zeros(0, 0, dtype=np.uint8),
            scales=scales,
        )
        results.append((codes.tobytes(), scales.tobytes()))
    assert results[0] == results[1]
    assert scales.all()


def test_add_norm(one_module: Any) -> None:
    def run(elem: str = "float32", delta: Any = None, width: int = 4, weight: int = 8) -> None:
        out = zeros(3 * 8 * width, dtype=np.uint8)
        one_module.add_norm(zeros(3, 8), delta, zeros(weight), 1e-5, out, elem, 2)

    run()
    for changes in (
        {"elem": "float16", "width": 2},  # would be written as float32, twice as long
        {"elem": "int32"},
        {"delta": zeros(8, 3)},
        {"delta": zeros(2, 8)},
        {"weight": 7},
        {"width": 2},
    ):
        with pytest.raises(ValueError, match=r"."):
            run(**changes)


def test_embed(one_module: Any) -> None:
    table = floats(5 * 8)
    one_module.embed(ints(4), table, "float32", zeros(1, 8), 1)
    for token, elem, rows in (
        (5, "float32", 1),
        (-1, "float32", 1),
        (0, "int32", 1),
        (0, "float32", 2),
    ):
        with pytest.raises(ValueError, match=r"."):
            one_module.embed(ints(token), table, elem, zeros(rows, 8), 1)


def test_argmax_of_no_columns(one_module: Any) -> None:
    for x, out in ((zeros(2, 0), 2), (zeros(2, 3), 1)):
        with pytest.raises(ValueError, match=r"."):
            one_module.argmax(x, zeros(out, dtype=np.int32), 2)


def test_conversion_of_half_an_element(one_module: Any) -> None:
    with pytest.raises(ValueError, match=r"."):
        one_module.convert(floats(2)[:-1], "float32", zeros(2, dtype=np.uint8), "bfloat16")


# One block, two heads of 8 and a KV head: rows of (2 + 2) * 8.
BLOCK = zeros(2 * 32 * 8 * 4, dtype=np.uint8)
ROPE: dict[str, Any] = {
    "qkv": zeros(3, 32),
    "q": zeros(3, 16),
    "cache": BLOCK,
    "element": "float32",
    "heads": 2,
    "kv_heads": 1,
    "cos": zeros(5, 4),
    "sin": zeros(5, 4),
    "q_norm": None,
    "k_norm": None,
    "eps": 0.0,
    "positions": ints(0, 1, 4),
    "slots": ints(0, 31, 5),
    "threads": 2,
}


@pytest.mark.parametrize(
    "changes",
    [
        {"heads": 0},
        {"heads": -2},
        {"heads": 3},
        {"kv_heads": 0},
        {"kv_heads": 2},
        {"kv_heads": 2**31 - 1},
        {"qkv": zeros(3, 31)},
        {"qkv": zeros(2, 32)},
        {"qkv": zeros(3, 32, dtype=np.uint16)},
        {"qkv": zeros(3, 32, dtype=np.float64)},
        {"q": zeros(2, 16)},
        {"q": zeros(3, 14), "qkv": zeros(3, 28)},  # heads of 7
        {
            "q": zeros(3, 1028),
            "qkv": zeros(3, 2056),
            "cache": zeros(2 * 32 * 514 * 4, dtype=np.uint8),
        },
        {"cache": BLOCK[:-4]},
        {"cache": BLOCK[:0]},
        {"element": "int32"},
        {"cos": zeros(4, 4)},
        {"cos": zeros(5, 5), "sin": zeros(5, 5)},
        {"positions": ints(0, 1, 5)},
        {"positions": ints(0, 1, -1)},
        {"positions": ints(0, 1)},
        {"slots": ints(0, 31, 32)},
        {"slots": ints(0, 31, -1)},
        {"q_norm": zeros(7)},
        {"k_norm": zeros(9)},
        {"threads": 0},
    ],
    ids=str,
)
def test_rope_write(one_module: Any, changes: dict[str, Any]) -> None:
    refuses(one_module.rope_write, ROPE, changes)


@pytest.mark.parametrize("changes", [{"cos": zeros(5)}, {"q_norm": zeros(2, 4)}], ids=str)
def test_rope_write_wants_dimensions(one_module: Any, changes: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        one_module.rope_write(**(ROPE | changes))


ATTENTION: dict[str, Any] = {
    "q": zeros(3, 16),
    "out": zeros(3, 16),
    "cache": BLOCK,
    "element": "float32",
    "heads": 2,
    "kv_heads": 1,
    "scale": 1.0,
    "window": 0,
    "positions": ints(0, 1, 2),
    "slots": ints(0, 1, 2),
    "query_starts": ints(0, 3),
    "context_lens": ints(3),
    "block_starts": ints(0, 1),
    "block_ids": ints(0),
    "threads": 2,
}


@pytest.mark.parametrize(
    "changes",
    [
        {"heads": 0},
        {"heads": 16},  # heads of 1
        {"kv_heads": 0},
        {"kv_heads": 3},
        {"element": "int32"},
        {"out": zeros(2, 16)},
        {"out": zeros(3, 15)},
        {"q": zeros(4, 16), "out": zeros(4, 16)},
        {"cache": BLOCK[:0]},
        {"block_ids": ints(1)},
        {"block_ids": ints(-1)},
        {"block_starts": ints(0, 0), "block_ids": ints()},
        {"context_lens": ints(33)},
        {"context_lens": ints(2)},
        {"context_lens": ints(), "query_starts": ints(0), "block_starts": ints(0)},
        {"query_starts": ints(0, 4)},
        {"query_starts": ints(0, 2**31 - 1)},
        {"query_starts": ints(-5, 3)},
        {"positions": ints(0, 1, 3)},
        {"slots": ints(0, 1, 32)},
        {"window": -1},
        {"threads": 0},
        {"tree_parents": ints(-1, 0)},
        {"tree_parents": ints(-1, 0, 2)},
    ],
    ids=str,
)
def test_attention(one_module: Any, changes: dict[str, Any]) -> None:
    refuses(one_module.attention, ATTENTION, changes)


def test_move_slots(one_module: Any) -> None:
    def run(*moves: tuple[int, int], **changes: Any) -> None:
        shape = {"kv_heads": 1, "head_dim": 8} | changes
        pairs = np.array(moves, np.int32).reshape(-1, 2)
        one_module.move_slots(zeros(len(BLOCK), dtype=np.uint8), "float32", moves=pairs, **shape)

    run((0, 31), (31, 5))
    with pytest.raises(ValueError, match="outside the cache"):
        run((0, 32))
    with pytest.raises(ValueError, match="outside the cache"):
        run((-1, 0))
    for changes in (
        {"kv_heads": 0},
        {"head_dim": 0},
        {"head_dim": -2},
        {"head_dim": 3},
        {"head_dim": 514},
    ):
        with pytest.raises(ValueError, match=r"."):
            run((0, 1), **changes)


def test_pages_and_pools(one_module: Any) -> None:
    for bytes_, worker, count, page in ((1, 0, 1, 0), (1, 0, 0, 1), (1, 1, 1, 1), (1, -1, 1, 1)):
        with pytest.raises(ValueError, match=r"."):
            one_module.page_range(bytes_, worker, count, page)
    for threads in (0, -1):
        with pytest.raises(ValueError, match="at least one thread"):
            one_module.Pool(threads=threads, cpus=[], crowded=True)
        with pytest.raises(ValueError, match="at least one thread"):
            one_module.measure_bf16(threads, 0.01)


def test_arrays_are_contiguous_and_of_their_type(one_module: Any) -> None:
    x = zeros(4, 8)
    for wrong in (x[:, ::2], x.T, x.astype(np.float64), x.reshape(-1), x.astype(">f4")):
        with pytest.raises(TypeError):
            one_module.argmax(wrong, zeros(4, dtype=np.int32), 1)
    readonly = as_bytes(x)
    readonly.flags.writeable = False
    with pytest.raises(TypeError):
        one_module.convert(floats(32), "float32", readonly, "bfloat16")
