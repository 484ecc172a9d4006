"""Bare native executors, and what is appended to them."""

from __future__ import annotations

from typing import Any

TOKENS, COLUMNS, BLOCKS = 4, 32, 2
ARENA = 64 << 10


BLOCK_BYTES = 2 * 8 * 32 * 4
CACHE = {
    "kv_groups": 1,
    "kv_parts": 1,
    "kv_part_bytes": BLOCK_BYTES,
    "kv_layers": [(1, 8, 0, 0, 0, 0, 0)],  # of each layer, as KvPages.layers
}


def make(module: Any, **changes: Any) -> Any:
    shape = {
        "threads": 2,
        "cpus": [],
        "crowded": True,
        "num_blocks": BLOCKS,
        "max_tokens": TOKENS,
        "max_logits": TOKENS,
        "max_sequences": 2,
        "max_positions": 64,
        "vocabulary": 8,
        "arena_bytes": ARENA,
        "kv_elem": "float32",
        "kv_layers": [],
    }
    return module.Executor(**(shape | changes))


class Buffers:
    """Buffers of an executor, one behind the other."""

    def __init__(self, executor: Any) -> None:
        self.native = executor
        self._end = 0

    def add(self, cols: int = COLUMNS, elem: str = "float32", rows: str = "T") -> int:
        row = cols * {"float32": 4, "int32": 4, "bfloat16": 2}[elem]
        times = int(rows[:-1] or 1)
        offset, self._end = self._end, self._end + -(-TOKENS * times * row // 64) * 64
        return int(self.native.add_buffer(offset, elem, cols, row, rows))


def append_attention(executor: Any, q: int, out: int, **changes: Any) -> None:
    options = {"heads": 1, "scale": 1.0, "window": 0, "softcap": None}
    options |= {"slopes": None, "sinks": None}
    executor.append_attention(layer=0, q=q, out=out, **(options | changes))
