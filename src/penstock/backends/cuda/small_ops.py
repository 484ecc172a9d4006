"""Launches of ops that work on rows, or heads, by themselves: ``SMALL_OPS`` lists them."""

from __future__ import annotations

from typing import Final, Protocol

import torch
from torch import Tensor

from penstock.backends.cuda.activation import plain_activation
from penstock.backends.cuda.cache import Cache, LatentCache, LayerCache
from penstock.backends.cuda.kernels.combine import clamp, combine, gate, scale, soft_cap
from penstock.backends.cuda.kernels.heads import head_norm, kv_write, rope
from penstock.backends.cuda.kernels.latents import put_in_heads, write_latents
from penstock.backends.cuda.kernels.norm import layer_norm, rms_norm
from penstock.backends.cuda.kernels.positions import add_positions, scale_by_position
from penstock.backends.cuda.kernels.xielu import xielu
from penstock.backends.cuda.program import Launch, Views
from penstock.backends.cuda.step import DeviceStep
from penstock.models.spec import PositionScale
from penstock.plan import ops
from penstock.plan.plan import Plan


class Weights(Protocol):
    """The part of the binder that these ops use: weights, tables, and the list of launches."""

    launches: list[Launch]

    def cache_of(self, layer: int) -> tuple[Cache, int]: ...

    def weight(self, name: ops.WeightName, dtype: torch.dtype = ...) -> Tensor: ...

    @property
    def plan(self) -> Plan: ...

    def norm_weight(self, name: ops.WeightName | None, cols: int) -> Tensor | None: ...

    def rope(self, index: int) -> tuple[tuple[Tensor, Tensor], bool]: ...

    def factors(self, scale: PositionScale) -> Tensor: ...


def _features(b: Weights, op: ops.Features) -> None:
    columns = slice(op.first, op.first + op.cols)
    b.launches.append(lambda views, step: combine(None, step.features[:, columns], views[op.out]))


def _join(b: Weights, op: ops.Join) -> None:
    def launch(views: Views, step: DeviceStep) -> None:
        out, first = views[op.out], 0
        for name in op.xs:
            x = views[name]
            if op.heads is None:
                combine(None, x, out[:, first : first + x.shape[1]])
                first += x.shape[1]
            else:
                put_in_heads(x, out, op.heads, first)
                first += x.shape[1] // op.heads

    b.launches.append(launch)


def _add(b: Weights, op: ops.Add) -> None:
    b.launches.append(lambda views, step: combine(views[op.x], views[op.y], views[op.out]))


def _activate(b: Weights, op: ops.Activate) -> None:
    b.launches.append(lambda views, step: combine(None, views[op.x], views[op.out], op.activation))


def _add_activated(b: Weights, op: ops.AddActivated) -> None:
    def launch(views: Views, step: DeviceStep) -> None:
        combine(views[op.x], views[op.y], views[op.out], op.activation)

    b.launches.append(launch)


def _rms_norm(b: Weights, op: ops.RmsNorm) -> None:
    weight = b.norm_weight(op.weight, b.plan.buffers[op.out].cols)
    b.launches.append(lambda views, step: rms_norm(views[op.x], weight, views[op.out], op.eps))


def _layer_norm(b: Weights, op: ops.LayerNorm) -> None:
    cols = b.plan.buffers[op.out].cols
    weight, bias = b.norm_weight(op.weight, cols), b.norm_weight(op.bias, cols)

    def launch(views: Views, step: DeviceStep) -> None:
        layer_norm(views[op.x], weight, bias, views[op.out], op.eps)

    b.launches.append(launch)


def _head_norm(b: Weights, op: ops.HeadNorm) -> None:
    weight, bias = (None if name is None else b.weight(name) for name in (op.weight, op.bias))

    def launch(views: Views, step: DeviceStep) -> None:
        x, out = views[op.x], views[op.out]
        head_norm(x, weight, out, op.eps, op.head_dim, bias, op.centered)

    b.launches.append(launch)


def _rope(b: Weights, op: ops.Rope) -> None:
    tables, interleaved = b.rope(op.rope)

    def launch(views: Views, step: DeviceStep) -> None:
        rope(views[op.x], step.positions, tables, interleaved, op.head_dim, views[op.out])

    b.launches.append(launch)


def _kv_write(b: Weights, op: ops.KvWrite) -> None:
    cache, group = b.cache_of(op.layer)
    v = op.v

    def launch(views: Views, step: DeviceStep) -> None:
        slots = step.groups[group].slots
        if v is None:
            assert isinstance(cache, LatentCache)
            write_latents(views[op.k], cache, slots)
        else:
            assert isinstance(cache, LayerCache)
            kv_write(views[op.k], views[v], cache, slots)

    b.launches.append(launch)


def _gate(b: Weights, op: ops.Gate) -> None:
    activation = plain_activation(op.activation)

    def launch(views: Views, step: DeviceStep) -> None:
        gate(views[op.gate], views[op.up], views[op.out], activation)

    b.launches.append(launch)


def _scale(b: Weights, op: ops.Scale) -> None:
    b.launches.append(lambda views, step: scale(views[op.x], views[op.out], op.factor))


def _scale_by(b: Weights, op: ops.ScaleBy) -> None:
    weight = b.weight(op.weight)

    def launch(views: Views, step: DeviceStep) -> None:
        torch.mul(views[op.x], weight, out=views[op.out])

    b.launches.append(launch)


def _columns(b: Weights, op: ops.Columns) -> None:
    columns = slice(op.first, op.first + b.plan.buffers[op.out].cols)
    b.launches.append(lambda views, step: combine(None, views[op.x][:, columns], views[op.out]))


def _soft_cap(b: Weights, op: ops.SoftCap) -> None:
    b.launches.append(lambda views, step: soft_cap(views[op.x], views[op.out], op.cap))


def _clamp(b: Weights, op: ops.Clamp) -> None:
    b.launches.append(lambda views, step: clamp(views[op.x], views[op.out], op.limit))


def _xielu(b: Weights, op: ops.Xielu) -> None:
    p, n, beta, eps = map(b.weight, (op.p, op.n, op.beta, op.eps))
    b.launches.append(lambda views, step: xielu(views[op.x], p, n, beta, eps, views[op.out]))


def _add_positions(b: Weights, op: ops.AddPositions) -> None:
    table = b.weight(op.weight)

    def launch(views: Views, step: DeviceStep) -> None:
        add_positions(views[op.x], step.positions, table, op.offset, views[op.out])

    b.launches.append(launch)


def _scale_by_position(b: Weights, op: ops.ScaleByPosition) -> None:
    factors, scale = b.factors(op.scale), op.scale

    def launch(views: Views, step: DeviceStep) -> None:
        x, out = views[op.x], views[op.out]
        scale_by_position(x, step.positions, factors, scale.offset, scale.period, out)

    b.launches.append(launch)


SMALL_OPS: Final[ops.OpTable[Weights]] = ops.op_table(
    ops.handles(ops.Features, _features),
    ops.handles(ops.Join, _join),
    ops.handles(ops.Add, _add),
    ops.handles(ops.Activate, _activate),
    ops.handles(ops.AddActivated, _add_activated),
    ops.handles(ops.RmsNorm, _rms_norm),
    ops.handles(ops.LayerNorm, _layer_norm),
    ops.handles(ops.HeadNorm, _head_norm),
    ops.handles(ops.Rope, _rope),
    ops.handles(ops.KvWrite, _kv_write),
    ops.handles(ops.Gate, _gate),
    ops.handles(ops.Scale, _scale),
    ops.handles(ops.ScaleBy, _scale_by),
    ops.handles(ops.Columns, _columns),
    ops.handles(ops.SoftCap, _soft_cap),
    ops.handles(ops.Clamp, _clamp),
    ops.handles(ops.Xielu, _xielu),
    ops.handles(ops.AddPositions, _add_positions),
    ops.handles(ops.ScaleByPosition, _scale_by_position),
)
