"""Lowering of what layers are given of a token besides the residual stream."""

from __future__ import annotations

from penstock.models.spec import EmbeddingScale, TokenInputsSpec
from penstock.plan.lower.builder import RESIDUAL, PlanBuilder
from penstock.plan.ops import Add, BufferName, Columns, Gate, HeadNorm, Join, RmsNorm, Scale

_AT = "token_inputs."


def lower_token_inputs(build: PlanBuilder, t: TokenInputsSpec, layers: int) -> BufferName:
    """The inputs of all layers, side by side, of the residual stream that enters the first."""
    columns = layers * t.size
    build.look_up(of_token := _AT + "of_token", _AT + "embed", t.vocab_size, columns)
    factor = EmbeddingScale(t.factor, rounded=True).in_type(build.dtype)
    build.append(Scale(of_token, of_token, factor))
    x = build.new(_AT + "x", build.hidden_size, build.activation)
    build.append(Join((RESIDUAL,), x))  # the residual stream itself goes on to change
    given = build.linear(x, _AT + "project", columns, bias=False)
    build.append(
        Scale(given, given, t.projection_scale),
        HeadNorm(given, given, t.size, build.weight(_AT + "norm", t.size), t.eps),
        Add(given, of_token, given),
        Scale(given, given, t.scale),
    )
    return given


def add_token_input(build: PlanBuilder, index: int, t: TokenInputsSpec, given: BufferName) -> None:
    """Add to the residual stream what layer ``index`` makes of its columns of ``given``."""
    at = f"layers.{index}.token_"
    own = build.new(at + "input", t.size)
    gate = build.linear(build.readable(RESIDUAL, at + "x"), at + "gate", t.size, bias=False)
    inner = build.new(at + "inner", t.size, build.activation)
    build.append(Columns(given, own, index * t.size), Gate(gate, own, inner, t.activation))
    made = build.linear(inner, at + "up", build.hidden_size, bias=False)
    normed = build.new(at + "normed", build.hidden_size)
    build.append(RmsNorm(made, normed, build.weight(at + "norm", build.hidden_size), t.eps))
    build.add(normed)
