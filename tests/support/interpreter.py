"""Triton's interpreter, made quicker where it does the same thing again, and steadier."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest


class _NothingToRestore:
    def restore(self) -> None:
        pass


@contextmanager
def quick_interpreter() -> Iterator[None]:
    """Lets a launch replace the functions of ``triton.language`` once, and check no overflows.

    The interpreter replaces them again for each call of a function within a kernel, by looking at
    all that the modules have: a third of the time of a whole plan. A sixth goes into overflows of
    integers, of which nobody hears outside of Triton's debugging mode, and some into a table of
    types that is built whenever one is looked up.
    """
    from triton import language
    from triton.runtime import interpreter

    patch_language: Callable[[Any], Any] = interpreter._patch_lang
    is_builtin = language.core.is_builtin

    @cache
    def modules(fn: Any) -> tuple[Any, ...]:
        seen = [value for value in fn.__globals__.values() if inspect.ismodule(value)]
        return tuple(each for each in seen if each in (language, language.core))

    def patch_once(fn: Any) -> Any:
        builtins = (language.core.tensor.__add__, *(each.load for each in modules(fn)))
        if any(is_builtin(each) for each in builtins):
            return patch_language(fn)
        return _NothingToRestore()

    numpy_type: Callable[[Any], Any] = interpreter._get_np_dtype
    known: dict[str, Any] = {}

    def known_type(of: Any) -> Any:
        name = (of.element_ty if isinstance(of, language.block_type) else of).name
        if name not in known:
            known[name] = numpy_type(of)
        return known[name]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter, "_patch_lang", patch_once)
        patch.setattr(interpreter, "_get_np_dtype", known_type)
        builder = interpreter.interpreter_builder
        patch.setattr(builder, "options", replace(builder.options, sanitize_overflow=False))
        yield


@contextmanager
def steady_products() -> Iterator[None]:
    """Products whose rows have the same bits in a tile of any shape, as they have on a GPU.

    The interpreter's are NumPy's, whose BLAS may take a row's sum in another order where there are
    other rows (as OpenBLAS does on a Zen 5, which it takes for a Haswell), and which adds as much
    of k at once as a tile is deep. A GPU adds a few of k at a time, whatever the tile; so does
    this, eight products at a time, each eight in float64.
    """
    from triton.runtime import interpreter

    numpys: Callable[..., Any] = interpreter.InterpreterBuilder.create_dot

    def create_dot(self: Any, a: Any, b: Any, d: Any, *options: Any) -> Any:
        if any(of.dtype.is_floating() and of.dtype.primitive_bitwidth == 8 for of in (a, b)):
            return numpys(self, a, b, d, *options)
        sums, x, y = d.data, a.data.astype(np.float64), b.data.astype(np.float64)
        for k in range(0, x.shape[-1], 8):
            sums = (sums + x[..., k : k + 8] @ y[..., k : k + 8, :]).astype(d.data.dtype)
        return interpreter.TensorHandle(sums, d.dtype.scalar)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(interpreter.InterpreterBuilder, "create_dot", create_dot)
        yield
