"""Name maps: how canonical weights are found in checkpoints of all kinds of layouts."""

from __future__ import annotations

import pytest

from penstock.interface.source_walks import tensors
from penstock.interface.sources import (
    Flat,
    OneOf,
    Packed,
    RowsOf,
    RowsOfEach,
    Shifted,
    Squeezed,
    Stacked,
    Stored,
    Transposed,
    UnitRows,
)
from penstock.models.float_codes import Mxfp4
from penstock.models.gptq import Gptq
from penstock.models.llama import NAMES
from penstock.models.name_forms import Less, OfAnyLength, OneColumn, OneRow, Rows, Scalar
from penstock.models.names import Name, NameMap, either, fused, plain, stacked

FUSED = NameMap(
    plain({"embed": "wte", "layers.*.o": "h.*.out"})
    | fused("h.*.qkv", "layers.*.q", "layers.*.k", "layers.*.v")
    | fused("h.*.conv", "layers.*.gate", "layers.*.up", transposed=True)
    | {
        "layers.*.down": Name("h.*.down", form=Rows(transposed=True)),
        "layers.*.norm": Name("h.*.ln", form=Less(1.0)),
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


def test_files_without_the_prefix() -> None:
    """All names lack it, but the head's, or none does."""
    names = NameMap(plain({"embed": "base.wte", "head": "lm_head"}), prefix="base.")
    bare = ["wte.weight", "h.0.bias", "lm_head.weight", "lm_head_shift"]
    assert names.completed(bare) == {
        "base.wte.weight": "wte.weight",
        "base.h.0.bias": "h.0.bias",
        "lm_head.weight": "lm_head.weight",
        "base.lm_head_shift": "lm_head_shift",
    }
    whole = ["base.wte.weight", "lm_head.weight", "stray"]
    assert names.completed(whole) == {name: name for name in whole}
    assert NAMES.completed(bare) == {name: name for name in bare}
    assert names.completed([]) == {}


def test_quantized_matrices() -> None:
    form = Gptq(4, 32, symmetric=True, zeros_less_one=True)
    fused_rows = FUSED.source("layers.7.k", SHAPES, form)
    assert fused_rows == RowsOf(Packed("h.7.qkv", (20, 8), form), ((12, 16),))
    # Formats keep [n, k], however the family stores floats.
    assert FUSED.source("layers.7.down", SHAPES, form) == Packed("h.7.down", (8, 6), form)


GATE, UP, DOWN = (f"layers.*.experts.{name}" for name in ("gate", "up", "down"))
EXPERTS = NameMap(
    either(
        plain({GATE: "e.*.#.w1", UP: "e.*.#.w3", DOWN: "e.*.#.w2"}),
        stacked("e.*.in", GATE, UP, kept="columns", interleaved=True, quantized=True)
        | stacked("e.*.out", DOWN),
    )
    | stacked("e.*.in_bias", GATE + ".bias", UP + ".bias", interleaved=True)
    | {"layers.*.shift": Name("e.*.shift", suffix="", form=OneRow())}
    | {"layers.*.taps": Name("e.*.taps", form=OneColumn())}
)
EXPERT_SHAPES = {
    "layers.2.experts.gate": (3, 20, 64),
    "layers.2.experts.up": (3, 20, 64),
    "layers.2.experts.down": (3, 64, 20),
    "layers.2.experts.gate.bias": (3, 20),
    "layers.2.experts.up.bias": (3, 20),
    "layers.2.shift": (3,),
    "layers.2.taps": (12, 3),
    "layers.2.taps.bias": (12,),
}


@pytest.mark.parametrize(
    ("name", "source"),
    [
        (
            "layers.2.experts.up",
            OneOf(
                (
                    Stacked(tuple(Stored(f"e.2.{i}.w3.weight", (20, 64)) for i in range(3))),
                    RowsOfEach(Transposed(Stored("e.2.in", (3, 64, 40))), 1, 20, step=2),
                )
            ),
        ),
        (
            "layers.2.experts.down",
            OneOf(
                (
                    Stacked(tuple(Stored(f"e.2.{i}.w2.weight", (64, 20)) for i in range(3))),
                    Stored("e.2.out", (3, 64, 20)),
                )
            ),
        ),
        ("layers.2.experts.up.bias", RowsOfEach(Stored("e.2.in_bias", (3, 40)), 1, 20, step=2)),
        ("layers.2.shift", Flat(Stored("e.2.shift", (1, 3)))),
        ("layers.2.taps", Squeezed(Stored("e.2.taps.weight", (12, 1, 3)))),
        ("layers.2.taps.bias", Stored("e.2.taps.bias", (12,))),
    ],
)
def test_stacks_of_experts(name: str, source: object) -> None:
    found = EXPERTS.source(name, EXPERT_SHAPES)
    assert found == source
    assert found.shape == EXPERT_SHAPES[name]


def test_a_quantized_stack_is_never_transposed() -> None:
    packed = Packed("e.2.in", (3, 40, 64), Mxfp4())
    assert EXPERTS.source("layers.2.experts.up", EXPERT_SHAPES, Mxfp4()) == OneOf(
        (
            Stacked(tuple(Packed(f"e.2.{i}.w3", (20, 64), Mxfp4()) for i in range(3))),
            RowsOfEach(packed, 1, 20, step=2),
        )
    )


def test_all_ways_move() -> None:
    moved = EXPERTS.moved({"e.": "text.e."}).source("layers.2.experts.down", EXPERT_SHAPES)
    assert isinstance(moved, OneOf)
    assert {tensor.name for way in moved.sources for tensor in tensors(way)} == {
        *(f"text.e.2.{i}.w2.weight" for i in range(3)),
        "text.e.2.out",
    }


def test_a_number_and_rows_of_unit_length() -> None:
    names = NameMap(
        {
            "layers.*.act_eps": Name("h.*.act.eps", suffix="", form=Scalar()),
            "head": Name("lm_head", form=OfAnyLength()),
        }
    )
    shapes = {"layers.2.act_eps": (1,), "head": (50, 8)}
    number = names.source("layers.2.act_eps", shapes)
    assert number == Stacked((Stored("h.2.act.eps", ()),))
    assert number.shape == (1,)
    assert names.source("head", shapes) == UnitRows(Stored("lm_head.weight", (50, 8)))
