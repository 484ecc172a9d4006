"""What ops keep on a GPU: empty matrices and tables, and attention's scratch.

Made on torch's ``meta`` device, they take no memory and tell their sizes.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from penstock.backends.cuda.attention import AttentionKernel
from penstock.backends.cuda.block_matrix import BlockTable
from penstock.backends.cuda.capability import Capability
from penstock.backends.cuda.head_matrix import HeadMatrix
from penstock.backends.cuda.matrix import GroupMatrix, Matrix, Shape, make_matrix
from penstock.backends.cuda.program import ELEMENTS
from penstock.backends.cuda.workspace import Workspace
from penstock.cache.geometry import Chunk, Window
from penstock.interface.executor import Limits
from penstock.models.spec import attention_of
from penstock.plan import ops
from penstock.plan.plan import Plan
from penstock.quant import BlockScheme, GroupScheme


def linear_matrix(op: ops.Linear, plan: Plan, limits: Limits, workspace: Workspace) -> Matrix:
    """Return the empty matrix of ``op``, to be filled part by part."""
    x = plan.buffers[op.x]
    most = (limits.max_tokens, limits.max_selected_rows, limits.max_logit_rows)
    shape = Shape(
        n=op.n,
        k=op.k,
        max_rows=plan.buffers[op.out].rows.count(*most),
        gated=op.gated is not None,
        of=whole_columns(op, plan),
        parts=tuple(part.n for part in op.parts),
    )
    return make_matrix(
        shape,
        plan.weight_dtype,
        op.scheme,
        workspace,
        ELEMENTS[x.element],
        weight_only=op.weight_only,
        deterministic=limits.deterministic,
    )


def whole_columns(op: ops.Linear | ops.ExpertLinear, plan: Plan) -> int | None:
    """Return the columns of the product of which ``op`` is one rank's; None where it has all."""
    shares = [plan.weights[part.weight].share for part in op.parts]
    if all(share is None for share in shares):
        return None
    widths = [
        part.n if share is None else share.shape[-2]
        for part, share in zip(op.parts, shares, strict=True)
    ]
    return widths[0] if op.gated is not None else sum(widths)


def block_table(op: ops.Embed, plan: Plan, scheme: BlockScheme, device: torch.device) -> BlockTable:
    """Return the empty table of ``op``, which no product reads."""
    rows, cols = plan.weights[op.weight].shape
    return BlockTable(rows, cols, scheme, device)


def group_table(
    op: ops.Embed, plan: Plan, scheme: GroupScheme, workspace: Workspace
) -> GroupMatrix:
    """Return the empty table of ``op``, in groups, which no product reads."""
    rows, cols = plan.weights[op.weight].shape
    shape = Shape(rows, cols, max_rows=1)
    return GroupMatrix(shape, scheme, workspace, torch.float32, weight_only=True)


def head_matrix(op: ops.HeadLinear, plan: Plan, limits: Limits, workspace: Workspace) -> HeadMatrix:
    """Return the empty matrix of ``op``."""
    most = (limits.max_tokens, limits.max_selected_rows, limits.max_logit_rows)
    max_rows = plan.buffers[op.out].rows.count(*most)
    x_dtype = ELEMENTS[plan.buffers[op.x].element]
    return HeadMatrix(op, max_rows, plan.weight_dtype, workspace, x_dtype)


class Geometry(NamedTuple):
    """What attention ops must have in common to share scratch memory and a step's work list."""

    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    window: Window | None
    value_dim: int | None


def attention_geometry(op: ops.Attention) -> Geometry:
    window = op.window if op.chunk is None else Chunk(op.chunk)
    return Geometry(op.heads, op.kv_heads, op.head_dim, op.scale, window, op.value_dim)


def attention_kernel(
    op: ops.Attention,
    plan: Plan,
    limits: Limits,
    device: torch.device,
    capability: Capability,
) -> AttentionKernel:
    """The kernel, and the scratch, of ``op`` and of all ops of its geometry."""
    return AttentionKernel(
        **attention_geometry(op)._asdict(),
        max_tokens=limits.max_tokens,
        max_sequences=limits.max_sequences,
        max_context=plan.max_positions,
        device=device,
        capability=capability,
        kv_dtype=plan.kv_dtype,
        whole_group=_whole_group(op, plan),
    )


def _whole_group(op: ops.Attention, plan: Plan) -> int:
    """Query heads of a KV head, also of those that other ranks have."""
    own = op.heads // op.kv_heads
    specs = (attention_of(layer) for layer in plan.spec.layers)
    groups = [each.num_heads // each.num_kv_heads for each in specs if each and not each.latent]
    return own if own in groups else max(groups, default=own)
