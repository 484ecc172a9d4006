"""The operations a model is lowered to, over named buffers.

A plan is a straight list of these. Every op is a frozen record: ``reads`` and ``writes`` name
the buffers it touches, weight fields hold canonical weight names (``models/names.py``), and the
docstring is the contract that every backend implements. Rows of a buffer are tokens of the step
(``Rows.TOKENS``), those of them whose logits or hidden states are wanted (``Rows.SELECTED``), or
the first of these, whose logits are (``Rows.LOGITS``).

Two families: *primitive* ops, which lowering emits one per line of the model's mathematics, and
*fused* ops, which ``plan/fuse.py`` puts in their place. The reference backend runs both, so that
fusion is testable by itself; a fast backend need only run what fusion leaves.

The rule for every kernel: the result of a row depends on that row (and, in ops that mix tokens, on
its own sequence) alone, and is computed in the same order whatever else is in the step.
"""

from __future__ import annotations

from penstock.plan.ops.adapters import AdapterDown, AdapterPart, AdapterUp
from penstock.plan.ops.base import (
    Buffer,
    BufferName,
    Element,
    Op,
    Rows,
    WeightName,
)
from penstock.plan.ops.common import (
    AllGather,
    Argmax,
    Attention,
    Embed,
    Features,
    GatherToFirst,
    Join,
    Linear,
    LinearPart,
    SelectRows,
)
from penstock.plan.ops.experts import CombineExperts, ExpertLinear, Route, ScaleRows
from penstock.plan.ops.fused import (
    AddActivated,
    AddNorm,
    RopeWrite,
)
from penstock.plan.ops.heads import HeadLinear
from penstock.plan.ops.mixers import ShortConv
from penstock.plan.ops.primitive import (
    Activate,
    Add,
    AddPositions,
    Clamp,
    Columns,
    Gate,
    HeadNorm,
    KvWrite,
    LayerNorm,
    RmsNorm,
    Rope,
    Scale,
    ScaleBy,
    ScaleByPosition,
    SoftCap,
    Xielu,
)
from penstock.plan.ops.state import GatedDelta, GatedNorm, SelectiveScan, StateConv
from penstock.plan.ops.table import OpTable, handles, op_table

__all__ = [
    "Activate",
    "AdapterDown",
    "AdapterPart",
    "AdapterUp",
    "Add",
    "AddActivated",
    "AddNorm",
    "AddPositions",
    "AllGather",
    "Argmax",
    "Attention",
    "Buffer",
    "BufferName",
    "Clamp",
    "Columns",
    "CombineExperts",
    "Element",
    "Embed",
    "ExpertLinear",
    "Features",
    "Gate",
    "GatedDelta",
    "GatedNorm",
    "GatherToFirst",
    "HeadLinear",
    "HeadNorm",
    "Join",
    "KvWrite",
    "LayerNorm",
    "Linear",
    "LinearPart",
    "Op",
    "OpTable",
    "RmsNorm",
    "Rope",
    "RopeWrite",
    "Route",
    "Rows",
    "Scale",
    "ScaleBy",
    "ScaleByPosition",
    "ScaleRows",
    "SelectRows",
    "SelectiveScan",
    "ShortConv",
    "SoftCap",
    "StateConv",
    "WeightName",
    "Xielu",
    "handles",
    "op_table",
]
