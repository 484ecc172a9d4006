"""A model's layers as they are quantized: what runs, which matrices there are, and what each of
these multiplies."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from penstock.errors import ModelError
from penstock.interface.plan_weights import PlanWeight
from penstock.interface.source_walks import chosen, packed, tensors
from penstock.interface.sources import PackedFormat, Shape, Source
from penstock.models.spec import DType, ModelSpec
from penstock.plan.cuts import alive_at, layer_cuts
from penstock.plan.fuse import fuse
from penstock.plan.lower import lower
from penstock.plan.ops import (
    BufferName,
    Embed,
    ExpertLinear,
    Join,
    Linear,
    Op,
    WeightName,
)
from penstock.plan.pieces import Piece, every_row, in_float32, pieces, places_to_cut
from penstock.plan.plan import Plan
from penstock.quantize.balancing import BalancedInput, balanced_inputs
from penstock.quantize.inputs import Input
from penstock.quantize.matrices import in_floats, matched, way_with


@dataclass(frozen=True)
class Target:
    """A matrix that is to be quantized."""

    module: str
    """Its module's name, which those of the tensors begin with that are written."""
    shape: tuple[int, int]
    """``[n, k]``."""
    input: Input | None
    """What it multiplies, where that can be told."""
    stored: PackedFormat
    """How it is to be stored."""
    source: Source
    """Where it is in the checkpoint in floats."""

    @cached_property
    def tensors(self) -> frozenset[str]:
        """The tensors of the checkpoint in floats that it is in."""
        return frozenset(each.name for each in tensors(self.source))

    @property
    def name(self) -> str:
        """What messages call it."""
        return f"{self.module}.weight"

    @property
    def joined(self) -> Input | str:
        """What matrices have in common that engines may multiply as one: their input or, where that
        is not known, the module that they are in."""
        return self.module.rpartition(".")[0] if self.input is None else self.input


@dataclass(frozen=True)
class Layer:
    """A piece of the model's plan, nearly always a layer."""

    piece: Piece
    targets: tuple[Target, ...]
    balanced: tuple[BalancedInput, ...]
    """The inputs of its matrices that may be balanced."""
    tensors: frozenset[str]
    """The tensors of the checkpoint in floats that its ops read."""
    measured: Piece | None
    """The ops of ``piece`` up to the last that makes what a matrix multiplies, which is all that it
    returns; None where there is no such op. The matrix behind that, a down matrix, is a quarter of
    a layer's products."""

    def joined_with(self, target: Target) -> list[Target]:
        """The matrices that engines may multiply together with one, and that itself."""
        return [each for each in self.targets if each.joined == target.joined]


@dataclass(frozen=True)
class Layers:
    """All of a model's layers, in their order."""

    lookups: Mapping[BufferName, WeightName]
    """Buffers that pieces are given: the rows that tokens look up in tables."""
    weights: Mapping[WeightName, PlanWeight]
    layers: tuple[Layer, ...]
    dtype: DType
    """The type of weights as they are run."""
    last: Piece
    """The last layer in full, which in ``layers`` ends with the inputs of its matrices."""
    head: Piece
    """What is behind the last layer, up to logits, which are observed, once for each op that writes
    them. Each row is made of that row alone."""
    rounded: Mapping[WeightName, Source]
    """The weights that have matrices which are to be quantized, as sources over tensors of floats
    ``[n, k]`` that have the names of these matrices' modules."""

    @property
    def targets(self) -> Iterator[Target]:
        return (target for layer in self.layers for target in layer.targets)

    @cached_property
    def owned(self) -> tuple[tuple[str, ...], ...]:
        """The tensors of the checkpoint in floats that each layer is the first to read, in the
        order of their names."""
        seen: set[str] = set()
        found: list[tuple[str, ...]] = []
        for layer in self.layers:
            found.append(tuple(sorted(layer.tensors - seen)))
            seen |= layer.tensors
        return tuple(found)

    def others(self, tensors: Iterable[str]) -> list[str]:
        """Those of ``tensors`` that no layer reads."""
        read = {name for names in self.owned for name in names}
        return [name for name in tensors if name not in read]

    def restricted(self, stored: Mapping[str, PackedFormat]) -> Layers:
        """The same with those matrices alone as targets whose modules are in ``stored``, and stored
        so."""
        layers = [
            replace(
                layer,
                targets=tuple(
                    replace(target, stored=stored[target.module])
                    for target in layer.targets
                    if target.module in stored
                ),
            )
            for layer in self.layers
        ]
        return replace(self, layers=tuple(layers))


def layers_of(
    floats: ModelSpec, stored: Mapping[str, Shape], quantized: ModelSpec, tokens: int
) -> Layers:
    """The layers of a model whose checkpoint has tensors of the shapes ``stored``, run over texts
    of ``tokens`` tokens.

    ``quantized`` is the same model with the ``quantization_config`` that it is to have: the
    matrices that are quantized are those which a reader of that expects to be. Raises ModelError
    where nothing is, and where a matrix is not stored by itself.
    """
    if floats.quantized is not None:
        raise ModelError(
            f"the checkpoint is quantized already ({floats.quantized}); quantize the original, in "
            "floats"
        )
    ways = {
        name: way_with(weight.source, stored)
        for name, weight in lower(quantized, floats.dtype).weights.items()
    }
    wanted = {name: way for name, way in ways.items() if any(packed(way))}
    plan = every_row(fuse(lower(floats, floats.dtype)), tokens)
    alive = alive_at(plan.ops)
    carried = {name for cut in layer_cuts(plan) for name in alive[cut.place]}
    plan = in_float32(plan, carried)
    sources = {
        name: replace(weight, source=chosen(weight.source, stored))
        for name, weight in plan.weights.items()
    }
    plan = replace(plan, weights=sources)
    modules = {
        name: matrices[0].name
        for name, way in wanted.items()
        if len(matrices := tuple(packed(way))) == 1
    }
    balanced = tuple(balanced_inputs(plan, modules))
    lookups = {op.out: op.weight for op in plan.ops if isinstance(op, Embed)}
    plan, inputs = _with_inputs(plan, wanted)
    read = {buffer.name for each in inputs.values() for buffer in each.buffers}
    parts = list(_parts(plan, read))
    layers = [
        _layer(
            plan,
            plan.ops[first:end],
            piece,
            _measured(plan, first, end, read),
            wanted,
            inputs,
            balanced,
        )
        for first, end, piece in parts
    ]
    last, head = _to_logits(plan, parts[-1][0], read)
    rounded = {name: in_floats(way) for name, way in wanted.items()}
    found = Layers(lookups, plan.weights, tuple(layers), floats.dtype, last, head, rounded)
    if not any(found.targets):
        raise ModelError(
            f"{floats.architecture} has no matrix that this format stores quantized; take another "
            "--format"
        )
    return found


def _with_inputs(
    plan: Plan, targeted: Collection[WeightName]
) -> tuple[Plan, dict[WeightName, Input]]:
    """The plan without lookups, and with what matrices multiply in buffers that nothing else writes
    to: the residual stream, which some multiply as it is, changes from op to op."""
    ops: list[Op] = []
    buffers, inputs = dict(plan.buffers), dict[WeightName, Input]()
    for op in plan.ops:
        if isinstance(op, Embed):
            continue
        names = [name for name in op.weights if name in targeted]
        if isinstance(op, Linear | ExpertLinear) and names:
            own = replace(buffers[op.x], name=f"{op.x} into {op.out}")
            buffers[own.name] = own
            ids = buffers[op.ids] if isinstance(op, ExpertLinear) else None
            inputs |= dict.fromkeys(names, Input(own, ids))
            ops.append(Join((op.x,), own.name))
        ops.append(op)
    return replace(plan, ops=tuple(ops), buffers=buffers), inputs


def _parts(plan: Plan, read: set[BufferName]) -> Iterator[tuple[int, int, Piece]]:
    """The ops that belong to each layer, from the first to the one behind the last, and the piece
    that runs them: of the last layer those alone that make an input of a matrix."""
    places = places_to_cut(plan, plan.ops)
    cuts = [cut.place for cut in layer_cuts(plan) if cut.place in places]
    last = max((i for i, op in enumerate(plan.ops) if read & set(op.writes)), default=-1) + 1
    kept = [place for place in cuts if place < last]
    ends = [*kept, max(last, kept[-1] + 1 if kept else 1)]
    made = pieces(plan, plan.ops[: ends[-1]], ends, read)
    firsts, lasts = [0, *kept], [*kept, len(plan.ops)]
    return zip(firsts, lasts, made, strict=True)


def _measured(plan: Plan, first: int, end: int, read: set[BufferName]) -> Piece | None:
    """The ops from ``first`` to the last before ``end`` that makes an input of a matrix."""
    made = [i for i in range(first, end) if read & set(plan.ops[i].writes)]
    if not made:
        return None
    behind = made[-1] + 1
    *_, piece = pieces(plan, plan.ops[:behind], [first, behind] if first else [behind], read)
    return piece


def _to_logits(plan: Plan, first: int, read: set[BufferName]) -> tuple[Piece, Piece]:
    """The ops from ``first`` on as two pieces: what is of layers, and what makes logits of it."""
    layered = (
        i for i, op in enumerate(plan.ops) if any(n.startswith("layers.") for n in op.weights)
    )
    behind = max(layered, default=first) + 1
    place = min(each for each in places_to_cut(plan, plan.ops) | {len(plan.ops)} if each >= behind)
    assert plan.logits is not None
    ends = [first, place, len(plan.ops)] if first else [place, len(plan.ops)]
    *_, last, head = pieces(plan, plan.ops, ends, read | {plan.logits})
    return last, head


def _layer(
    plan: Plan,
    ops: Sequence[Op],
    piece: Piece,
    measured: Piece | None,
    wanted: Mapping[WeightName, Source],
    inputs: Mapping[WeightName, Input],
    balanced: Sequence[BalancedInput],
) -> Layer:
    names = dict.fromkeys(name for op in ops for name in op.weights)
    targets: dict[str, Target] = {}
    for name in names:
        if name not in wanted:
            continue
        given = inputs.get(name)
        for place, (matrix, source) in enumerate(matched(wanted[name], plan.weights[name].source)):
            if given is not None and given.ids is not None:
                given = replace(given, expert=place)
            n, k = matrix.shape
            own = Target(matrix.name, (n, k), given, matrix.format, source)
            targets.setdefault(matrix.name, own)
    stored = frozenset(each.name for name in names for each in tensors(plan.weights[name].source))
    divided = tuple(each for each in balanced if each.tensors <= stored)
    return Layer(piece, tuple(targets.values()), divided, stored, measured)
