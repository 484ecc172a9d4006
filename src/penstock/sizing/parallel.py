"""One model on several devices: what a rank computes, and what ranks send each other.

With N ranks that share every layer (tensor parallelism), ours cut all products by output columns
and gather what the next op reads whole, so that no bit depends on N; each rank receives ``(N - 1) /
N`` of ``attention out + hidden + MLP + hidden`` numbers a layer and token. Others cut every second
product by input columns and add up partial sums: two ring all-reduces a layer, of which a rank
receives ``2 (N - 1) / N`` of ``hidden`` numbers each. Stages (pipeline parallelism) hand over the
residual stream of a token once each.
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

_ELEMENT_BYTES = 2  # both exchange 16-bit numbers


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

    def seconds(self, link: Link, tokens: int) -> float:
        hops = self.exchanges * self.per_exchange
        return self.token_bytes * tokens / (link.gb_per_s * 1e9) + hops * link.us * 1e-6


def traffic(spec: ModelSpec, parallel: Parallelism) -> Traffic:
    """Return what ranks receive of each other, stages' hand-overs included."""
    n, token_bytes, exchanges, hops = parallel.tensor, 0.0, 0, 1
    if n > 1:
        others = (n - 1) / n
        for layer in spec.layers:
            if parallel.exchange == "gather":
                widths = gathered(spec, layer)
                token_bytes += others * sum(widths) * _ELEMENT_BYTES
                exchanges += len(widths)
            else:
                parts = (layer.mixer is not None) + (layer.mlp is not None)
                token_bytes += 2 * others * parts * spec.hidden_size * _ELEMENT_BYTES
                exchanges += parts
        # Of a gather all come at once, around a ring one after the other, twice.
        hops = 1 if parallel.exchange == "gather" else 2
    stages = parallel.pipeline - 1
    return Traffic(token_bytes + stages * spec.hidden_size * 4, exchanges + stages, hops)


def gathered(spec: ModelSpec, layer: LayerSpec) -> tuple[int, ...]:
    """Return the columns of what ranks that cut products by output columns put together."""
    widths: list[int] = []
    for mixer in layer.mixers:
        if isinstance(mixer, AttentionSpec):
            dim = mixer.head_dim if mixer.latent is None else mixer.latent.v_dim
            widths.append(mixer.num_heads * dim)
        elif isinstance(mixer, GatedDeltaSpec):
            widths.append(mixer.value_size)
        elif isinstance(mixer, SelectiveSpec):
            widths.append(mixer.inner_size)
        else:
            widths.append(mixer.size)
    if layer.mixer is not None:
        widths.append(spec.hidden_size)
    if isinstance(layer.mlp, MlpSpec):
        widths += [layer.mlp.intermediate_size, spec.hidden_size]
    elif layer.mlp is not None:
        experts = layer.mlp
        widths += [experts.top_k * experts.intermediate_size, spec.hidden_size]
    return tuple(widths)
