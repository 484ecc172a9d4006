"""Name maps: how canonical weights are found in checkpoints of all kinds of layouts."""

from __future__ import annotations

import pytest

from penstock.interface.sources import Packed, RowsOf, Shifted, Stacked, Stored, Transposed
from penstock.models.gptq import Gptq
from penstock.models.llama import NAMES
from penstock.models.names import Name, NameMap, fused, plain

FUSED = NameMap(
    plain({"embed": "wte", "layers.*.o": "h.*.out"})
    | fused("h.*.qkv", "layers.*.q", "layers.*.k", "layers.*.v")
    | fused("h.*.conv", "layers.*.gate", "layers.*.up", transposed=True)
    | {
        "layers.*.down": Name("h.*.down", transposed=True),
        "layers.*.norm": Name("h.*.ln", shift=1.0),
        "layers.*.sinks": Name("h.*.sinks", suffix=""),
        "layers.*.experts.up": Name("h.*.experts.#.w3"),
        "layers.*.o.bias": Name("h.*.out_shift", suffix=""),
    }
)
SHAPES = {
    "embed": (50, 8),
    "layers.7.q": (12, 8),
    "layers.7.k": (4, 8),
    "layers.7.v": (4, 8),
    "layers.7.q.bias": (12,),
    "layers.7.k.bias": (4,),
    "layers.7.v.bias": (4,),
    "layers.7.o": (8, 12),
    "layers.7.o.bias": (8,),
    "layers.7.gate": (6, 8),
    "layers.7.up": (6, 8),
    "layers.7.down": (8, 6),
    "layers.7.down.bias": (8,),
    "layers.7.norm": (8,),
    "layers.7.sinks": (3,),
    "layers.7.experts.up": (2, 6, 8),
}


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("embed", Stored("wte.weight", (50, 8))),
        ("layers.7.q", RowsOf(Stored("h.7.qkv.weight", (20, 8)), ((0, 12),))),
        ("layers.7.v", RowsOf(Stored("h.7.qkv.weight", (20, 8)), ((16, 20),))),
        ("layers.7.k.bias", RowsOf(Stored("h.7.qkv.bias", (20,)), ((12, 16),))),
        ("layers.7.o.bias", Stored("h.7.out_shift", (8,))),
        ("layers.7.up", RowsOf(Transposed(Stored("h.7.conv.weight", (8, 12))), ((6, 12),))),
        ("layers.7.down", Transposed(Stored("h.7.down.weight", (6, 8)))),
        ("layers.7.down.bias", Stored("h.7.down.bias", (8,))),
        ("layers.7.norm", Shifted(Stored("h.7.ln.weight", (8,)), 1.0)),
        ("layers.7.sinks", Stored("h.7.sinks", (3,))),
        (
            "layers.7.experts.up",
            Stacked(tuple(Stored(f"h.7.experts.{i}.w3.weight", (6, 8)) for i in range(2))),
        ),
    ],
)
def test_sources(name: str, source: object) -> None:
    found = FUSED.source(name, SHAPES)
    assert found == source
    assert found.shape == SHAPES[name]


@pytest.mark.parametrize("name", ["layers.0.unknown", "layers.x.q", "nothing", "Q", "", "q"])
def test_unknown_canonical_name(name: str) -> None:
    with pytest.raises(KeyError):
        NAMES.source(name, {name: (2, 2)})


def test_idle_tensors() -> None:
    assert NAMES.is_idle("model.layers.3.self_attn.rotary_emb.inv_freq")
    assert not NAMES.is_idle("model.layers.3.self_attn.q_proj.weight")
    assert not FUSED.is_idle("")
    assert not FUSED.is_idle("anything")


def test_quantized_matrices() -> None:
    form = Gptq(4, 32, symmetric=True, zeros_less_one=True)
    fused_rows = FUSED.source("layers.7.k", SHAPES, form)
    assert fused_rows == RowsOf(Packed("h.7.qkv", (20, 8), form), ((12, 16),))
    # Formats keep [n, k], however the family stores floats.
    assert FUSED.source("layers.7.down", SHAPES, form) == Packed("h.7.down", (8, 6), form)
