"""Prints a plan: the ops of a step, their buffers and their weights."""

from __future__ import annotations

from collections import Counter

from penstock.cache.geometry import Chunk, window_size
from penstock.plan.kv_groups import KvGroup
from penstock.plan.memory import MemoryPlan
from penstock.plan.ops import HeadLinear, Linear, Op, SelectRows
from penstock.plan.plan import Plan


def explain(plan: Plan, memory: MemoryPlan | None = None, state_bytes: int | None = None) -> str:
    """Return the plan as text, one line per op; layers that repeat the one before are printed
    once.

    ``state_bytes``: those of a state slot, where a backend says how many it allocates.
    """
    spec = plan.spec
    stored = "" if spec.quantized is None else f", matrices as they are stored ({spec.quantized})"
    lines = [
        f"{spec.architecture}: {len(spec.layers)} layers, hidden {spec.hidden_size}, "
        f"vocabulary {spec.vocab_size:,}, "
        f"{plan.num_parameters:,} parameters{_active(plan)} in {plan.weight_dtype}{stored}",
        f"{len(plan.ops)} ops a step; T token rows, S selected, R with logits; "
        f"KV cache in {plan.kv_dtype}{_groups(plan)}{_states(plan, state_bytes)}",
    ]
    if any(isinstance(op, HeadLinear) for op in plan.ops) and any(
        isinstance(op, Linear) and op.scheme is not None for op in plan.ops
    ):
        lines.append(
            f"matrices of single heads (HeadLinear) are not quantized: {plan.weight_dtype}"
        )
    groups = _by_layer(plan)
    i = 0
    while i < len(groups):
        layer, ops = groups[i]
        same = i
        pattern = [_line(plan, op, layer) for op in ops]
        while (
            layer is not None
            and same + 1 < len(groups)
            and groups[same + 1][0] is not None
            and [_line(plan, op, groups[same + 1][0]) for op in groups[same + 1][1]] == pattern
        ):
            same += 1
        last = groups[same][0]
        if layer is not None:
            lines.append(f"layer {layer}" + (f" to {last}" if last != layer else ""))
        lines += [("  " if layer is not None else "") + line for line in pattern]
        i = same + 1
    if memory is not None:
        lines.append(
            f"activations: {memory.total_bytes / 2**20:.1f} MiB in one arena "
            f"({memory.unshared_bytes / 2**20:.1f} MiB without sharing)"
        )
    return "\n".join(lines)


def _active(plan: Plan) -> str:
    """How many of the parameters a token is computed with, where those are not all."""
    active = plan.active_parameters
    return "" if active == plan.num_parameters else f", {active:,} of them for a token,"


def _groups(plan: Plan) -> str:
    """Return lines on the KV groups, if layers have different windows."""
    groups = plan.kv_groups
    if set(groups.windows) <= {None}:
        return ""
    alike = Counter((len(group.layers), _sight(plan, group)) for group in groups)
    parts = [
        f"{count} of {layers} layer{'s' if layers > 1 else ''}{sight}"
        for (layers, sight), count in alike.items()
    ]
    used = sum(layer.block_bytes(plan.kv_dtype) for layer in plan.kv_layers)
    wasted = 1 - used / (len(groups) * groups.page_bytes)
    return (
        f" by groups of layers: {', '.join(parts)}; pages of {groups.page_bytes:,} bytes, of which "
        f"{wasted:.1%} are not used"
    )


def _states(plan: Plan, num_bytes: int | None) -> str:
    """Return what layers that keep states keep of a sequence, if there are any."""
    count = len(plan.state_layers)
    if count == 0:
        return ""
    layers = f"{count} layer{'s' if count > 1 else ''}"
    size = (plan.state_bytes(log=0) if num_bytes is None else num_bytes) / 2**20
    return f"; a state of {size:.1f} MiB for each sequence, of {layers}"


def _sight(plan: Plan, group: KvGroup) -> str:
    """What the group's layers see, and what they keep of a block if that is not all."""
    window = group.window
    if window is None:
        return ""
    kind = "in chunks" if isinstance(window, Chunk) else "with a window"
    rows = {plan.kv_layers[number].rows for number in group.layers} - {None}
    kept = "".join(f" that keep {count} rows of a block" for count in rows)
    return f" {kind} of {window_size(window):,}{kept}"


def _layer_of(op: Op) -> int | None:
    names = (*op.weights, *op.writes, *op.reads)
    for name in names:
        if name.startswith("layers."):
            return int(name.split(".")[1])
    return None


def _by_layer(plan: Plan) -> list[tuple[int | None, list[Op]]]:
    groups: list[tuple[int | None, list[Op]]] = []
    for op in plan.ops:
        # Rows are selected inside the last layer, from buffers that may belong to none.
        inside = groups and isinstance(op, SelectRows)
        layer = groups[-1][0] if inside else _layer_of(op)
        if not groups or groups[-1][0] != layer:
            groups.append((layer, []))
        groups[-1][1].append(op)
    return groups


def _line(plan: Plan, op: Op, layer: int | None) -> str:
    def short(name: str) -> str:
        own = name.removeprefix(f"layers.{layer}.")
        return own.replace(f"layers.{layer - 1}.", "previous ") if layer else own

    def shaped(name: str) -> str:
        buffer = plan.buffers[name]
        return f"{short(name)}[{buffer.rows},{buffer.cols}]:{buffer.element}"

    flow = f"{', '.join(short(r) for r in op.reads)} -> {', '.join(shaped(w) for w in op.writes)}"
    weights = f"  weights {', '.join(short(w) for w in op.weights)}" if op.weights else ""
    options = {
        name: value
        for name, value in op.options().items()
        if value is not None and value is not False and name != "layer"
    }
    extra = "  " + ", ".join(f"{k}={v}" for k, v in options.items()) if options else ""
    return f"{op.kind:<10} {flow}{weights}{extra}"
