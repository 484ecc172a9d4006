"""One model on several devices: what a rank computes, and what ranks send each other.

With N ranks that share every layer (tensor parallelism), ours cut all products by output columns
and gather what the next op reads whole, so that no bit depends on N; each rank receives ``(N - 1) /
N`` of ``2 (attention out + MLP) + 4 (hidden + hidden)`` bytes a layer and token: what products read
has 16 bits, and what is added to the residual stream is float32. Others cut every second product by
input columns and add up partial sums: two ring all-reduces a layer, of which a rank receives ``2 (N
- 1) / N`` of ``hidden`` 16-bit numbers each. Of logits, float32, rank 0 receives those of the other
ranks. Stages (pipeline parallelism) hand over the residual stream of a token once each.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from penstock.errors import ConfigError
from penstock.models.spec import AttentionSpec, LayerSpec, MlpSpec, ModelSpec
from penstock.models.state_spec import GatedDeltaSpec, SelectiveSpec
from penstock.plan.costs import Demand
from penstock.sizing.accelerator import Link

Exchange = Literal["gather", "reduce"]
"""How ranks put a layer together: ``gather`` columns, as ours, or ``reduce`` sums, as others."""

_READ_BYTES, _ADDED_BYTES = 2, 4
"""Bytes of a number that the next product reads, and of one that is added to the residual stream,
or a logit."""


@dataclass(frozen=True)
class Parallelism:
    """Ranks that share each layer, and stages that have some of the layers each."""

    tensor: int = 1
    pipeline: int = 1
    exchange: Exchange = "gather"

    @property
    def devices(self) -> int:
        return self.tensor * self.pipeline

    def __str__(self) -> str:
        return f"TP {self.tensor}" + (f" x PP {self.pipeline}" if self.pipeline > 1 else "")


def check(spec: ModelSpec, parallel: Parallelism) -> None:
    """Raise ConfigError where a model cannot be cut so."""
    if parallel.pipeline > len(spec.layers):
        raise ConfigError(
            f"{parallel.pipeline} stages cannot share {len(spec.layers)} layers; take at most as "
            "many stages as layers"
        )
    for layer in spec.layers:
        for mixer in layer.mixers:
            if isinstance(mixer, AttentionSpec) and mixer.num_heads % parallel.tensor:
                raise ConfigError(
                    f"{parallel.tensor} ranks cannot share {mixer.num_heads} attention heads "
                    "evenly; take a number that divides them"
                )


def rank_share(demand: Demand, ranks: int) -> Demand:
    """Return what one of ``ranks`` has of an op. KV heads are kept by several where there are fewer
    of them than ranks; latents by all; ops between products are computed by all."""
    if ranks == 1 or demand.work == "rows":
        return demand
    return replace(
        demand,
        weight_bytes=demand.weight_bytes / ranks,
        multiply_adds=-(-demand.multiply_adds // ranks),
        token_bytes=demand.token_bytes // min(ranks, demand.kv_heads),
        state_bytes=demand.state_bytes // ranks,
        columns=-(-demand.columns // ranks),
    )


@dataclass(frozen=True)
class Traffic:
    """What each rank receives in a step."""

    token_bytes: float
    """Bytes for each token of the step."""
    exchanges: int
    """Exchanges that wait for each other, whatever their size."""
    per_exchange: int
    """Hops of each."""
    row_bytes: float = 0.0
    """Bytes that rank 0 receives for each row of logits, in one more exchange."""

    def seconds(self, link: Link, tokens: int, rows: int = 0) -> float:
        """Time of a step of so many tokens, of which ``rows`` have logits."""
        hops = self.exchanges * self.per_exchange + (rows > 0 and self.row_bytes > 0)
        received = self.token_bytes * tokens + self.row_bytes * rows
        return received / (link.gb_per_s * 1e9) + hops * link.us * 1e-6


def traffic(spec: ModelSpec, parallel: Parallelism) -> Traffic:
    """Return what ranks receive of each other, stages' hand-overs included."""
    n, token_bytes, exchanges, hops = parallel.tensor, 0.0, 0, 1
    others = (n - 1) / n
    if n > 1:
        for layer in spec.layers:
            if parallel.exchange == "gather":
                sizes = gathered_bytes(spec, layer)
                token_bytes += others * sum(sizes)
                exchanges += len(sizes)
            else:
                parts = (layer.mixer is not None) + (layer.mlp is not None)
                token_bytes += 2 * others * parts * spec.hidden_size * _READ_BYTES
                exchanges += parts
        # Of a gather all come at once, around a ring one after the other, twice.
        hops = 1 if parallel.exchange == "gather" else 2
    stages = parallel.pipeline - 1
    return Traffic(
        token_bytes + stages * spec.hidden_size * 4,
        exchanges + stages,
        hops,
        others * spec.vocab_size * _ADDED_BYTES,
    )


def gathered_bytes(spec: ModelSpec, layer: LayerSpec) -> tuple[int, ...]:
    """Return the bytes of a token of each gather in which ranks that cut products by output columns
    put a layer together, of all ranks."""
    sizes: list[int] = []
    for mixer in layer.mixers:
        if isinstance(mixer, AttentionSpec):
            dim = mixer.head_dim if mixer.latent is None else mixer.latent.v_dim
            width = mixer.num_heads * dim
        elif isinstance(mixer, GatedDeltaSpec):
            width = mixer.value_size
        elif isinstance(mixer, SelectiveSpec):
            width = mixer.inner_size
        else:
            width = mixer.size
        sizes.append(width * _READ_BYTES)
    if layer.mixer is not None:
        sizes.append(spec.hidden_size * _ADDED_BYTES)
    if layer.mlp is not None:
        inner = layer.mlp.intermediate_size
        if not isinstance(layer.mlp, MlpSpec):
            inner *= layer.mlp.top_k
        sizes += [inner * _READ_BYTES, spec.hidden_size * _ADDED_BYTES]
    return tuple(sizes)
