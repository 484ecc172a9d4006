"""Ops over states, and slots of them, that do not fit are refused when they are appended."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.native_executor import Buffers, make
from support.native_row_ops import floats

SLOT = 4096
LAYER = (0, 2, 8, 16, 1024, 3, 48, 2048, 100)
"""Two heads of [8, 16], a ring of 3 rows of 48, and a log of up to 100 columns."""
STATES: dict[str, Any] = {
    "state_slots": 2,
    "state_log": 1,
    "state_bytes": SLOT,
    "state_layers": [LAYER],
}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"state_slots": 0}, "they alone, have slots"),
        ({"state_slots": -1}, "they alone, have slots"),
        ({"state_layers": []}, "they alone, have slots"),
        ({"state_log": -1}, "they alone, have slots"),
        ({"state_elem": "int32"}, "a convolution keeps"),
        ({"state_bytes": SLOT - 1}, "whole cache lines"),
        ({"state_bytes": 1024}, "lies outside its slot"),
        ({"state_slots": 2**30, "state_bytes": 2**40}, "larger than any memory"),
        ({"state_layers": [(0, 0, *LAYER[2:])]}, "a state has heads"),
        ({"state_layers": [(0, 2, 1025, *LAYER[3:])]}, "heads of 1 to 1024 rows"),
        ({"state_layers": [(0, 2, 8, 0, *LAYER[4:])]}, "one column or more"),
        ({"state_layers": [(32, *LAYER[1:])]}, "not on a cache line"),
        ({"state_layers": [(*LAYER[:4], 4096, *LAYER[5:])]}, "lies outside its slot"),
        ({"state_layers": [(*LAYER[:5], 0, *LAYER[6:])]}, "a ring of one row or more"),
        ({"state_layers": [(*LAYER[:7], 4032, 100)]}, "lies outside its slot"),
        ({"state_layers": [(*LAYER[:8], 0)]}, "rows of a log"),
    ],
)
def test_slots_that_cannot_be(module: Any, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(module, **STATES | changes)


class Ops:
    """An executor with a state, and buffers of the sizes that its ops have."""

    def __init__(self, module: Any) -> None:
        self.native = make(module, **STATES)
        buffers = Buffers(self.native)
        self.x, self.out, self.values, self.pairs, self.each, self.odd = (
            buffers.add(cols) for cols in (48, 48, 32, 4, 2, 47)
        )

    def floats(self, count: int) -> int:
        return floats(self.native, np.ones(count, np.float32))

    def conv(self, **changes: Any) -> None:
        options = {"layer": 0, "x": self.x, "out": self.out, "bias": None, "kernel": 3}
        options |= {"weight": self.floats(3 * 48), "silu": True}
        self.native.append_state_conv(**options | changes)

    def delta(self, **changes: Any) -> None:
        """Keys of one head of 8, values of two of 16."""
        options = {"layer": 0, "qkv": self.x, "ba": self.pairs, "out": self.values}
        options |= {"a_log": self.floats(2), "dt_bias": self.floats(2), "key_heads": 1}
        options["tiled"] = False
        self.native.append_gated_delta(**options | changes)

    def scan(self, **changes: Any) -> None:
        options = {"layer": 0, "xbc": self.x, "dt": self.each, "out": self.values, "groups": 1}
        options |= {name: self.floats(2) for name in ("a_log", "dt_bias", "d")}
        self.native.append_selective_scan(**options | {"dt_limits": (0.0, np.inf)} | changes)


@pytest.fixture
def ops(module: Any) -> Any:
    made = Ops(module)
    yield made
    made.native.close()


def test_what_fits_is_appended(ops: Ops) -> None:
    ops.conv()
    ops.delta()
    ops.scan()
    assert ops.native.op_names == ["StateConv", "GatedDelta", "SelectiveScan"]


@pytest.mark.parametrize("name", ["conv", "delta", "scan"])
def test_layers_that_there_are_not(ops: Ops, name: str) -> None:
    for layer in (-1, 1):
        with pytest.raises(ValueError, match="no such layer with a state"):
            getattr(ops, name)(layer=layer)


def test_convolutions_that_do_not_fit(ops: Ops) -> None:
    with pytest.raises(ValueError, match="input of a convolution has 48 columns"):
        ops.conv(x=ops.odd)
    with pytest.raises(ValueError, match="output of a convolution has 48 columns"):
        ops.conv(out=ops.values)
    with pytest.raises(ValueError, match="lie in the same memory"):
        ops.conv(out=ops.x)
    for kernel in (1, 4, 17):  # of which a ring of 3 rows keeps 2, and one may be taken back
        with pytest.raises(ValueError, match="a convolution sees 2 to 16 tokens"):
            ops.conv(kernel=kernel)
    with pytest.raises(ValueError, match="weight has 572 bytes"):
        ops.conv(weight=ops.floats(143))
    with pytest.raises(ValueError, match="bias has 188 bytes"):
        ops.conv(bias=ops.floats(47))


def test_recurrences_that_do_not_fit(ops: Ops) -> None:
    with pytest.raises(ValueError, match="share key heads evenly"):
        ops.delta(key_heads=3)
    with pytest.raises(ValueError, match="queries, keys and values has 64 columns"):
        ops.delta(key_heads=2)
    with pytest.raises(ValueError, match="betas and decays are made of has 4 columns"):
        ops.delta(ba=ops.each)
    with pytest.raises(ValueError, match="rates of decay has 4 bytes"):
        ops.delta(a_log=ops.floats(1))
    with pytest.raises(ValueError, match="share groups evenly"):
        ops.scan(groups=0)
    with pytest.raises(ValueError, match="joined x, B and C has 64 columns"):
        ops.scan(groups=2)
    with pytest.raises(ValueError, match="limits of time steps ascend"):
        ops.scan(dt_limits=(1.0, 0.5))
    with pytest.raises(ValueError, match="x is multiplied by has 12 bytes"):
        ops.scan(d=ops.floats(3))


def test_a_log_that_is_too_narrow(module: Any) -> None:
    narrow = (*LAYER[:8], 41)
    made = Ops(module)
    made.native = make(module, **STATES | {"state_layers": [narrow]})
    buffers = Buffers(made.native)
    x, values, pairs, each = (buffers.add(cols) for cols in (48, 32, 4, 2))
    with pytest.raises(ValueError, match="rows of a log have 41 columns where 44 are needed"):
        made.delta(qkv=x, ba=pairs, out=values)
    with pytest.raises(ValueError, match="rows of a log have 41 columns where 42 are needed"):
        made.scan(xbc=x, dt=each, out=values)
