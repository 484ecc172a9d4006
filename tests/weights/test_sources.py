"""Weights by their sources: values, checks, and which bytes of files are looked at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors.numpy import save_file

from penstock.errors import WeightError
from penstock.interface.source_walks import chosen, rows_pushed_down
from penstock.interface.sources import (
    Factored,
    Flat,
    Merged,
    OneOf,
    Packed,
    RowsOf,
    RowsOfEach,
    ScaledRows,
    Shifted,
    Source,
    Squeezed,
    Stacked,
    Stored,
    Transposed,
    Unpaired,
)
from penstock.models.bitsandbytes import Bnb8
from penstock.models.gguf.blocks import BlockMatrix
from penstock.quant.formats import GGUF_FORMATS
from penstock.weights.safetensors import open_folder
from penstock.weights.source_checks import check
from penstock.weights.sources import has_rows_apart, read
from penstock.weights.tensor_file import Found

ARRAYS: dict[str, NDArray[Any]] = {
    "a": np.arange(48, dtype=np.float32).reshape(8, 6),
    "b": -np.arange(48, dtype=np.float32).reshape(8, 6),
    "c": np.arange(30, dtype=np.float32).reshape(5, 6).astype(ml_dtypes.bfloat16),
    "square": np.arange(36, dtype=np.float32).reshape(6, 6),
}

OTHER_ARRAYS: dict[str, NDArray[Any]] = {
    "stack": np.arange(120, dtype=np.float32).reshape(3, 8, 5),
    "row": np.arange(7, dtype=np.float32).reshape(1, 7),
    "taps": np.arange(21, dtype=np.float32).reshape(3, 1, 7),
}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    folder: Path = tmp_path_factory.mktemp("model")
    save_file(ARRAYS | OTHER_ARRAYS, folder / "model.safetensors")
    return open_folder(folder)


def value(source: Source) -> NDArray[Any]:
    """What the words of ``interface/sources.py`` mean, in NumPy."""
    match source:
        case Stored(name):
            return (ARRAYS | OTHER_ARRAYS)[name].astype(np.float32)
        case RowsOf(inner, runs):
            return np.concatenate([value(inner)[first:end] for first, end in runs])
        case Stacked(sources):
            return np.stack([value(each) for each in sources])
        case RowsOfEach(inner, first, count, step):
            return np.stack([each[first::step][:count] for each in value(inner)])
        case Flat(inner):
            return value(inner).reshape(-1)
        case Squeezed(inner):
            return value(inner).squeeze(1)
        case Transposed(inner):
            return np.moveaxis(value(inner), -1, -2)
        case Shifted(inner, by):
            return value(inner) + np.float32(by)
        case ScaledRows(inner, factors):
            by_row = [factor for count, factor in factors for _ in range(count)]
            rows = zip(value(inner), by_row, strict=True)
            return np.stack([row * np.float32(factor) for row, factor in rows])


@st.composite
def sources(draw: st.DrawFn) -> Source:
    """Any but the shifted."""

    def rows(inner: Source) -> st.SearchStrategy[Source]:
        n = inner.shape[0]
        run = st.tuples(st.integers(0, n), st.integers(0, n)).map(lambda r: (min(r), max(r)))
        return st.lists(run, min_size=1, max_size=3).map(lambda runs: RowsOf(inner, tuple(runs)))

    source: Source = draw(st.sampled_from([Stored(n, a.shape) for n, a in ARRAYS.items()]))
    for kind in draw(st.lists(st.sampled_from(["rows", "transposed", "stacked"]), max_size=4)):
        if kind == "rows":
            source = draw(rows(source))
        elif kind == "transposed" and len(source.shape) == 2:
            source = Transposed(source)
        elif kind == "stacked" and len(source.shape) < 4:
            source = Stacked((source,) * draw(st.integers(1, 3)))
    return source


@settings(max_examples=200, deadline=None)
@given(source=sources(), by=st.sampled_from([None, 1.0]))
def test_any_source_is_read_as_defined(found: Found, source: Source, by: float | None) -> None:
    source = source if by is None else Shifted(source, by)
    check(source, found)
    array = read(source, found, "float32")
    assert array.shape == source.shape
    np.testing.assert_array_equal(array, value(source))
    assert not array.flags.writeable


def test_a_plain_tensor_and_its_rows_are_views(found: Found) -> None:
    whole = Stored("a", (8, 6))
    first = read(whole, found, "float32")
    assert read(RowsOf(whole, ((2, 4),)), found, "float32").base is not None
    assert first.base is not None


def test_a_shifted_weight_keeps_float32(found: Found) -> None:
    shifted = read(Shifted(Stored("c", (5, 6)), 1.0), found, "bfloat16")
    assert shifted.dtype == np.float32
    rows = RowsOf(Shifted(Stored("c", (5, 6)), 1.0), ((0, 2),))
    assert read(rows, found, "bfloat16").dtype == np.float32
    assert read(Stored("c", (5, 6)), found, "bfloat16").dtype == ml_dtypes.bfloat16


def test_shapes_and_types_are_checked(found: Found) -> None:
    with pytest.raises(WeightError, match=r"'b' has shape \[8, 6\].*asks for \[7, 6\]"):
        check(Stacked((Stored("a", (8, 6)), Stored("b", (7, 6)))), found)


STACK = Stored("stack", (3, 8, 5))


SCALES = ((1, 0.3), (2, 1.7))


@pytest.mark.parametrize(
    ("source", "shape"),
    [
        (RowsOfEach(STACK, 4, 4), (3, 4, 5)),
        (RowsOfEach(STACK, 1, 4, step=2), (3, 4, 5)),
        (RowsOfEach(Transposed(STACK), 1, 2, step=2), (3, 2, 8)),
        (RowsOfEach(Stored("a", (8, 6)), 1, 3, step=2), (8, 3)),
        (Transposed(STACK), (3, 5, 8)),
        (Flat(Stored("row", (1, 7))), (7,)),
        (Shifted(Flat(Stored("row", (1, 7))), 0.0), (7,)),
        (Squeezed(Stored("taps", (3, 1, 7))), (3, 7)),
        (Shifted(Squeezed(Stored("taps", (3, 1, 7))), 0.0), (3, 7)),
        (Shifted(ScaledRows(Squeezed(Stored("taps", (3, 1, 7))), SCALES), 0.0), (3, 7)),
    ],
)
def test_stacks(source: Source, shape: tuple[int, ...], found: Found) -> None:
    check(source, found)
    result = read(source, found, "bfloat16")
    assert isinstance(result, np.ndarray)
    assert source.shape == result.shape == shape
    some = read(RowsOf(source, ((1, 2), (0, 1))) if shape[0] == 3 else source, found, "bfloat16")
    np.testing.assert_array_equal(some, result[[1, 0]] if shape[0] == 3 else result)
    wide = isinstance(source, Shifted)
    assert result.dtype == (np.float32 if wide else ml_dtypes.bfloat16)
    np.testing.assert_array_equal(result.astype(np.float32), value(source))


def test_of_several_ways_the_first_whole_one_is_chosen() -> None:
    first = Stacked((Stored("x.0", (2, 2)), Stored("x.1", (2, 2))))
    second, third = Stored("x", (2, 2, 2)), Stored("y", (2, 2, 2))
    ways = RowsOf(OneOf((first, second, third)), ((0, 1),))
    assert ways.shape == (1, 2, 2)
    shapes = {"x.0": (2, 2), "x.1": (2, 2), "x": (2, 2, 2), "y": (2, 2, 2)}

    def of(*names: str, **others: tuple[int, ...]) -> Source:
        result = chosen(ways, {name: shapes[name] for name in names} | others)
        assert isinstance(result, RowsOf)
        return result.source

    assert of("x.0", "x.1", "x") == first
    assert of("x.0", "y") == third
    assert of("x.1") == first  # and what it lacks can be named
    assert of() == first
    assert of("y", x=(2, 3)) == third
    assert of(x=(2, 3)) == second  # and what it has can be named
    assert chosen(Stored("z", (1,)), shapes) == Stored("z", (1,))


def test_rows_are_taken_as_near_to_the_tensors_as_can_be() -> None:
    a, b, square = Stored("a", (8, 6)), Stored("b", (8, 6)), Stored("square", (6, 6))
    fused = RowsOf(a, ((0, 2), (4, 7)))
    assert rows_pushed_down(fused) == fused
    inner = RowsOf(fused, ((1, 4),))  # rows 1, 4 and 5
    assert rows_pushed_down(inner) == RowsOf(a, ((1, 2), (4, 6)))
    assert rows_pushed_down(RowsOf(fused, ((2, 2),))).shape == (0, 6)
    assert rows_pushed_down(RowsOf(Stacked((a, b)), ((1, 2),))) == Stacked((b,))
    shifted = RowsOf(Shifted(a, 1.0), ((3, 5),))
    assert rows_pushed_down(shifted) == Shifted(RowsOf(a, ((3, 5),)), 1.0)
    each = RowsOf(RowsOfEach(Transposed(STACK), 1, 2, step=2), ((1, 2),))
    alone = RowsOf(STACK, ((1, 2),))
    assert rows_pushed_down(each) == RowsOfEach(Transposed(alone), 1, 2, step=2)
    experts = RowsOf(RowsOfEach(Stacked((a, b)), 2, 3), ((0, 1),))
    assert rows_pushed_down(experts) == Stacked((RowsOf(a, ((2, 5),)),))
    one, three = Stored("one", (1,)), Stored("three", (3,))
    assert rows_pushed_down(RowsOf(Factored(STACK, one), ((1, 2),))) == Factored(alone, one)
    own = RowsOf(three, ((1, 2),))
    assert rows_pushed_down(RowsOf(Factored(STACK, three), ((1, 2),))) == Factored(alone, own)
    # Rows of what is stored the other way lie everywhere.
    turned = RowsOf(Transposed(square), ((0, 1),))
    assert rows_pushed_down(turned) == turned


def test_rows_that_can_be_read_without_the_others() -> None:
    a, b = Stored("a", (8, 6)), Stored("b", (8, 6))
    blocks = BlockMatrix(GGUF_FORMATS["Q8_0"].scheme)
    for apart in (
        *(a, RowsOf(a, ((0, 2), (4, 7))), Shifted(a, 1.0), Factored(a, Stored("c", (8,)))),
        *(Factored(a, Stored("one", (1,))), Packed("p", (8, 64), blocks)),
    ):
        assert has_rows_apart(apart), apart
    for whole in (
        *(Transposed(a), Unpaired(a, 2), Merged(Stacked((a, b))), ScaledRows(a, ((8, 2.0),))),
        *(Packed("p", (8, 64), Bnb8()), Shifted(Transposed(a), 1.0)),
    ):
        assert not has_rows_apart(whole), whole
