"""A model's layers as they are quantized: what runs, which matrices there are, and what each of
these multiplies."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from penstock.errors import ModelError
from penstock.interface.plan_weights import PlanWeight
from penstock.interface.source_walks import made_of, packed, tensors
from penstock.interface.sources import Packed, PackedFormat, Source, Transposed
from penstock.models.spec import DType, ModelSpec
from penstock.plan.cuts import layer_cuts
from penstock.plan.fuse import fuse
from penstock.plan.lower import lower
from penstock.plan.ops import Buffer, BufferName, Embed, Join, Linear, Op, WeightName
from penstock.plan.pieces import Piece, every_row, pieces, places_to_cut
from penstock.plan.plan import Plan
from penstock.quantize.balancing import BalancedInput, balanced_inputs


@dataclass(frozen=True)
class Target:
    """A matrix that is to be quantized."""

    module: str
    """Its module's name, to which ``.weight`` is the name of its tensor."""
    shape: tuple[int, int]
    """``[n, k]``."""
    input: Buffer | None
    """What it multiplies; None: rows that are chosen for it, such as those of an expert."""
    stored: PackedFormat
    """How it is to be stored."""

    @property
    def name(self) -> str:
        """The tensor that it is of."""
        return f"{self.module}.weight"

    @property
    def joined(self) -> str:
        """What matrices have in common that engines may multiply as one: their input or, where that
        is not known, the module that they are in."""
        return self.module.rpartition(".")[0] if self.input is None else self.input.name


@dataclass(frozen=True)
class Layer:
    """A piece of the model's plan, nearly always a layer."""

    piece: Piece
    targets: tuple[Target, ...]
    balanced: tuple[BalancedInput, ...]
    """The inputs of its matrices that may be balanced."""
    tensors: frozenset[str]
    """The tensors of the checkpoint in floats that its ops read."""

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
    """What is behind the last layer, up to logits, which are observed. Each row is made of that row
    alone."""

    @property
    def targets(self) -> Iterator[Target]:
        return (target for layer in self.layers for target in layer.targets)

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


def layers_of(floats: ModelSpec, quantized: ModelSpec, tokens: int) -> Layers:
    """The layers of a model, run over texts of ``tokens`` tokens.

    ``quantized`` is the same model with the ``quantization_config`` that it is to have: the
    matrices that are quantized are those which a reader of that expects to be. Raises ModelError
    where nothing is.
    """
    if floats.quantized is not None:
        raise ModelError(
            f"the checkpoint is quantized already ({floats.quantized}); quantize the original, in "
            "floats"
        )
    wanted = {
        name: tuple(packed(weight.source))
        for name, weight in lower(quantized, floats.dtype).weights.items()
    }
    plan = every_row(fuse(lower(floats, floats.dtype)), tokens)
    modules = {name: matrices[0].name for name, matrices in wanted.items() if len(matrices) == 1}
    balanced = tuple(balanced_inputs(plan, modules))
    lookups = {op.out: op.weight for op in plan.ops if isinstance(op, Embed)}
    targeted = {name for name, matrices in wanted.items() if matrices}
    plan, inputs = _with_inputs(plan, targeted)
    read = {buffer.name for buffer in inputs.values()}
    parts = list(_parts(plan, read))
    layers = [
        _layer(plan, plan.ops[first:end], piece, wanted, inputs, balanced)
        for first, end, piece in parts
    ]
    last, head = _to_logits(plan, parts[-1][0], read)
    found = Layers(lookups, plan.weights, tuple(layers), floats.dtype, last, head)
    if not any(found.targets):
        raise ModelError(
            f"{floats.architecture} has no matrix that this format stores quantized; take another "
            "--format"
        )
    return found


def _with_inputs(plan: Plan, targeted: Collection[WeightName]) -> tuple[Plan, dict[str, Buffer]]:
    """The plan without lookups, and with what matrices multiply in buffers that nothing else writes
    to: the residual stream, which some multiply as it is, changes from op to op."""
    ops: list[Op] = []
    buffers, inputs = dict(plan.buffers), dict[WeightName, Buffer]()
    for op in plan.ops:
        if isinstance(op, Embed):
            continue
        names = [name for name in op.weights if name in targeted]
        if isinstance(op, Linear) and names:
            own = replace(buffers[op.x], name=f"{op.x} into {op.out}")
            buffers[own.name] = own
            inputs |= dict.fromkeys(names, own)
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
    wanted: Mapping[WeightName, tuple[Packed, ...]],
    inputs: Mapping[WeightName, Buffer],
    balanced: Sequence[BalancedInput],
) -> Layer:
    names = dict.fromkeys(name for op in ops for name in op.weights)
    targets: dict[str, Target] = {}
    for name in names:
        for matrix in wanted.get(name, ()):
            if len(matrix.shape) != 2 or _is_transposed(plan.weights[name].source):
                raise ModelError(
                    f"{matrix.name} is stored transposed, or as a stack of matrices, and is not "
                    "quantized yet; take another --method, or another model"
                )
            n, k = matrix.shape
            own = Target(matrix.name, (n, k), inputs.get(name), matrix.format)
            targets.setdefault(matrix.name, own)
    stored = frozenset(each.name for name in names for each in tensors(plan.weights[name].source))
    divided = tuple(each for each in balanced if each.tensors <= stored)
    return Layer(piece, tuple(targets.values()), divided, stored)


def _is_transposed(source: Source) -> bool:
    return isinstance(source, Transposed) or any(map(_is_transposed, made_of(source)))
