"""Triton's interpreter, made quicker where it does the same thing again."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any

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
