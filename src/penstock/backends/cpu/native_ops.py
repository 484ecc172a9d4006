"""The types of a native executor's ops: how each is appended to those that a step runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NewType, Protocol

BufferId = NewType("BufferId", int)
ConstantId = NewType("ConstantId", int)
MatrixId = NewType("MatrixId", int)


class NativeOps(Protocol):
    """Appends ops, which run in this order. See ``csrc/executor.h``."""

    def append_embed(self, table: ConstantId, elem: str, out: BufferId, rows: int) -> None:
        """``rows``: of the table, at least as many as there are tokens."""
        ...

    def append_packed_embed(self, table: MatrixId, out: BufferId) -> None:
        """Embeddings are read from a matrix in blocks, which a product may read, too."""
        ...

    def append_add_positions(
        self, *, x: BufferId, out: BufferId, table: ConstantId, elem: str, rows: int, offset: int
    ) -> None: ...

    def append_add_norm(
        self,
        residual: BufferId,
        delta: BufferId | None,
        out: BufferId,
        weight: ConstantId | None,
        eps: float,
    ) -> None: ...

    def append_rms_norm(
        self, x: BufferId, out: BufferId, weight: ConstantId | None, eps: float
    ) -> None: ...

    def append_layer_norm(
        self,
        x: BufferId,
        out: BufferId,
        weight: ConstantId | None,
        bias: ConstantId | None,
        eps: float,
    ) -> None: ...

    def append_linear(
        self,
        matrix: MatrixId,
        bias: ConstantId | None,
        x: BufferId,
        out: BufferId,
        gate: str,
        clamp: tuple[float, float] | None = None,
    ) -> None: ...

    def append_all_gather(self, x: BufferId, out: BufferId, ranks: list[tuple[int, int]]) -> None:
        """``ranks``: the columns of out that each rank has, of which x are this rank's."""
        ...

    def append_gather_to_first(
        self, x: BufferId, out: BufferId | None, ranks: list[tuple[int, int]]
    ) -> None:
        """The same for rank 0 alone: others have no out."""
        ...

    def append_route(
        self,
        *,
        logits: BufferId,
        ids: BufferId,
        shares: BufferId,
        choice_bias: ConstantId | None,
        share_scale: ConstantId | None,
        scores: str,
        normalize: bool,
        normalize_eps: float,
        normalize_least: float,
        scale: float,
        groups: int,
        groups_chosen: int,
        top2: bool,
        jitter: float,
    ) -> None: ...

    def append_expert_linear(
        self,
        matrix: MatrixId,
        bias: ConstantId | None,
        x: BufferId,
        ids: BufferId,
        out: BufferId,
        gate: str,
        clamp: tuple[float, float] | None = None,
    ) -> None: ...

    def append_scale_rows(
        self, x: BufferId, by: BufferId, out: BufferId, sigmoid: bool
    ) -> None: ...

    def append_combine_experts(
        self, x: BufferId, shares: BufferId | None, out: BufferId
    ) -> None: ...

    def append_head_norm(
        self,
        x: BufferId,
        out: BufferId,
        head_dim: int,
        weight: ConstantId | None,
        eps: float,
        *,
        bias: ConstantId | None,
        layer: bool,
        each_head: bool,
    ) -> None: ...

    def append_rope(
        self,
        *,
        x: BufferId,
        out: BufferId,
        head_dim: int,
        cos: ConstantId,
        sin: ConstantId,
        rope_dim: int,
        interleaved: bool,
    ) -> None: ...

    def append_kv_write(self, *, layer: int, k: BufferId, v: BufferId | None) -> None:
        """``v``: None for a cache of latents."""
        ...

    def append_state_conv(
        self,
        *,
        layer: int,
        x: BufferId,
        out: BufferId,
        weight: ConstantId,
        bias: ConstantId | None,
        kernel: int,
        silu: bool,
    ) -> None:
        """``weight``: ``[kernel, columns]``."""
        ...

    def append_gated_delta(
        self,
        *,
        layer: int,
        qkv: BufferId,
        ba: BufferId,
        out: BufferId,
        a_log: ConstantId,
        dt_bias: ConstantId,
        key_heads: int,
        tiled: bool,
    ) -> None: ...

    def append_selective_scan(
        self,
        *,
        layer: int,
        xbc: BufferId,
        dt: BufferId,
        out: BufferId,
        a_log: ConstantId,
        dt_bias: ConstantId,
        d: ConstantId,
        groups: int,
        dt_limits: tuple[float, float],
    ) -> None: ...

    def append_gated_norm(
        self,
        *,
        x: BufferId,
        gate: BufferId,
        out: BufferId,
        weight: ConstantId,
        eps: float,
        size: int,
        gate_first: bool,
        each_part: bool,
    ) -> None: ...

    def append_head_linear(
        self, *, matrix: MatrixId, heads: int, x: BufferId, out: BufferId
    ) -> None:
        """``matrix`` has the heads' rows one after another, each head's up to a whole panel."""
        ...

    def append_rope_write(
        self,
        *,
        layer: int,
        qkv: BufferId,
        q: BufferId,
        heads: int,
        cos: ConstantId,
        sin: ConstantId,
        rope_dim: int,
        interleaved: bool,
        q_norm: ConstantId | None,
        k_norm: ConstantId | None,
        eps: float,
    ) -> None: ...

    def append_attention(
        self,
        *,
        layer: int,
        q: BufferId,
        out: BufferId,
        heads: int,
        scale: float,
        window: int,
        chunk: int,
        softcap: float | None,
        slopes: ConstantId | None,
        sinks: ConstantId | None,
        slope_factor: float,
    ) -> None: ...

    def append_short_conv(
        self,
        *,
        layer: int,
        x: BufferId,
        out: BufferId,
        taps: ConstantId,
        bias: ConstantId | None,
        kernel: int,
    ) -> None:
        """``taps``: ``[kernel, columns]``, the oldest token's first."""
        ...

    def append_select_rows(self, x: BufferId, out: BufferId, first: int) -> None: ...

    def append_argmax(self, x: BufferId, out: BufferId) -> None: ...

    def append_features(self, out: BufferId, first: int) -> None: ...

    def append_gather_columns(
        self,
        x: BufferId,
        outs: Sequence[BufferId],
        orders: Sequence[ConstantId],
        ids: BufferId | None = None,
    ) -> None:
        """Each out gets ``out[r, j] = x[r, order[j]]`` by its order, int32, one for each column;
        with ``ids``, for each of its row's expert."""
        ...

    def append_adapter_down(
        self,
        *,
        x: BufferId,
        low: BufferId,
        slots: int,
        rank: int,
        parts: int,
        elem: str,
        weights: ConstantId,
        scales: ConstantId,
    ) -> None:
        """``weights`` and ``scales`` are tables, of all slots and their parts, that may be written
        between steps; see ``csrc/kernels/adapters.h``."""
        ...

    def append_adapter_up(
        self,
        *,
        low: BufferId,
        out: BufferId,
        slots: int,
        rank: int,
        columns: list[int],
        at: int,
        parts: int,
        elem: str,
        weights: ConstantId,
        scales: ConstantId,
    ) -> None:
        """``columns``: of out, those of each part; these are parts from ``at`` on of ``parts``."""
        ...

    def append_turn_rows(
        self,
        *,
        x: BufferId,
        out: BufferId,
        signs: ConstantId,
        doubled: int,
        base: int,
        base_matrix: ConstantId | None,
    ) -> None:
        """Constants are float32: signs ``[cols]``, and ``base_matrix`` ``[base, base]``, of Paley's
        matrix column by column; None where base is 1."""
        ...

    def append_turn_back(
        self,
        *,
        x: BufferId,
        second: BufferId | None,
        out: BufferId,
        first: int,
        by: float,
        scale: ConstantId,
        bias: ConstantId | None,
        signs: ConstantId,
        doubled: int,
        base: int,
        base_matrix: ConstantId | None,
    ) -> None:
        """Likewise, but with ``base_matrix`` row by row; columns of x and ``second`` are those from
        ``first`` on, ``second`` is multiplied by ``by``, and all by ``scale`` ``[1]``."""
        ...

    def append_join(self, xs: Sequence[BufferId], out: BufferId, heads: int) -> None: ...

    def append_add_activated(
        self, x: BufferId | None, y: BufferId, out: BufferId, activation: str
    ) -> None:
        """``out = x + activation(y)``: without x the activation alone, with ``none`` the sum."""
        ...

    def append_gate(
        self,
        gate: BufferId,
        up: BufferId,
        out: BufferId,
        activation: str,
        clamp: tuple[float, float] | None = None,
    ) -> None:
        """``out = activation(gate) * up``, or with ``clamp``, a limit and an alpha, clamped
        SwiGLU."""
        ...

    def append_scale(self, x: BufferId, out: BufferId, factor: float) -> None: ...

    def append_scale_by(self, x: BufferId, out: BufferId, factor: ConstantId) -> None: ...

    def append_columns(self, x: BufferId, out: BufferId, first: int) -> None: ...

    def append_soft_cap(self, x: BufferId, out: BufferId, cap: float) -> None: ...

    def append_xielu(
        self,
        *,
        x: BufferId,
        out: BufferId,
        p: ConstantId,
        n: ConstantId,
        beta: ConstantId,
        eps: ConstantId,
    ) -> None: ...

    def append_clamp(self, x: BufferId, out: BufferId, limit: float) -> None: ...

    def append_scale_by_position(
        self, *, x: BufferId, out: BufferId, factors: ConstantId, period: int, offset: int
    ) -> None: ...
