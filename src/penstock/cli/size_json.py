"""The JSON document of ``penstock size``; docs/sizing.md lists its fields."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import msgspec

from penstock.sizing.configuration import Configuration
from penstock.sizing.footprint import kv_kinds
from penstock.sizing.ranking import Best
from penstock.sizing.roofline import Bounds
from penstock.sizing.search import Search
from penstock.sizing.serving import Estimate
from penstock.written_file import write_json


def to_terminal(args: argparse.Namespace) -> bool:
    """Whether the document takes the place of what is printed."""
    return args.json is not None and str(args.json) == "-"


def write_document(args: argparse.Namespace, document: object) -> None:
    """Write it where ``--json`` says."""
    if not to_terminal(args):
        write_json(args.json, document)
        return
    text = msgspec.json.format(msgspec.json.encode(document), indent=2)
    sys.stdout.write(text.decode() + "\n")


class FoundConfiguration(msgspec.Struct, frozen=True, kw_only=True):
    """A configuration. Times are seconds, sizes bytes, prices US dollars."""

    accelerator: str
    tensor: int
    pipeline: int
    machines: int
    """Those of a replica."""
    replicas: int
    weights: str
    kv: str
    meets: bool
    excess: float
    """How many times the worst objective is missed."""
    requests_that_fit: int
    """How many one replica holds."""
    device_memory: float
    device_weights: float
    device_activations: float
    device_request: float
    at_load: dict[str, float]
    """What one replica gives its part of the load."""
    full: dict[str, float]
    decode_seconds: dict[str, float]
    prefill_seconds: dict[str, float]
    decode_binds: str
    prefill_binds: str
    usd_per_hour: float | None
    usd_per_million_in: float | None
    usd_per_million_out: float | None


def document(search: Search, found: Sequence[Configuration], best: Best) -> dict[str, object]:
    """All that was found, with what was asked for."""
    demanded, w = search.demanded, search.demanded.workload
    numbers = {id(each): number for number, each in enumerate(found)}
    return {
        "model": {
            "architecture": search.model.spec.architecture,
            "layers": len(search.model.spec.layers),
        },
        "load": {
            "isl": w.isl,
            "osl": w.osl,
            "concurrency": demanded.concurrency,
            "slo_s": {
                "ttft": demanded.slo.ttft,
                "tpot": demanded.slo.tpot,
                "latency": demanded.slo.latency,
            },
            "tokens_per_step": w.speculation.length,
        },
        "kv": _kinds(search, best.cheapest),
        "meets": best.meets,
        "cheapest": numbers[id(best.cheapest)],
        "fastest": numbers[id(best.fastest)],
        "cheapest_full": numbers[id(best.fullest)],
        "configurations": [msgspec.to_builtins(_found(each)) for each in found],
    }


def _kinds(search: Search, chosen: Configuration) -> list[dict[str, object]]:
    sized = search.model.plan(chosen.device.kind, chosen.precision, search.budget(chosen.device))
    return [
        {"layers": kind.layers, "kind": kind.name, "token_bytes": kind.token_bytes}
        for kind in kv_kinds(search.model.spec, sized.plan)
    ]


def _found(each: Configuration) -> FoundConfiguration:
    cost = each.usd_per_million
    return FoundConfiguration(
        accelerator=each.device.name,
        tensor=each.parallel.tensor,
        pipeline=each.parallel.pipeline,
        machines=each.machines,
        replicas=each.replicas,
        weights=each.precision.weights,
        kv=each.precision.kv,
        meets=each.meets,
        excess=each.excess,
        requests_that_fit=each.room.requests,
        device_memory=each.room.memory,
        device_weights=each.room.weights,
        device_activations=each.room.activations,
        device_request=each.room.request,
        at_load=_figures(each.at_load),
        full=_figures(each.full),
        decode_seconds=_parts(each.decode),
        prefill_seconds=_parts(each.prefill),
        decode_binds=each.decode.binds,
        prefill_binds=each.prefill.binds,
        usd_per_hour=each.usd_per_hour,
        usd_per_million_in=None if cost is None else cost[0],
        usd_per_million_out=None if cost is None else cost[1],
    )


def _figures(given: Estimate) -> dict[str, float]:
    names = (
        *("concurrency", "ttft", "tpot", "latency", "requests_per_s", "input_tps", "output_tps"),
        *("decoding", "prefill_share"),
    )
    return {name: float(getattr(given, name)) for name in names}


def _parts(bounds: Bounds) -> dict[str, float]:
    names = ("compute", "memory", "communication", "overhead")
    return {name: float(getattr(bounds, name)) for name in names}
