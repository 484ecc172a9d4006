"""Freed memory goes back to the system."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from penstock.freed_memory import give_back


def anonymous_bytes() -> int:
    lines = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines["RssAnon"].split()[0]) * 1024


def test_freed_blocks_are_given_back() -> None:
    if not hasattr(ctypes.CDLL(None), "malloc_trim"):
        pytest.skip("the C library has no malloc_trim")
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, (ctypes.c_void_p,)
    size, count = 65536, 800  # too small for pages of their own
    blocks = [libc.malloc(size) for _ in range(count)]
    for block in blocks:
        ctypes.memset(block, 1, size)
    for block in blocks[:-1]:
        libc.free(block)  # the last keeps the end of the heap where it is
    before = anonymous_bytes()
    give_back()
    assert before - anonymous_bytes() > size * count // 2
    libc.free(blocks[-1])
