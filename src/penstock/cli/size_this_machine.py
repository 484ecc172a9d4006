"""``penstock size --this-machine``: what Penstock would give a load here, without the weights."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

import msgspec

from penstock.bench.machine import Machine, describe_machine, measure_speeds
from penstock.bench.machine_calibration import calibrate
from penstock.cli.bench_common import machine_rows, print_table
from penstock.cli.bench_progress import BenchProgress
from penstock.cli.parser import UsageError
from penstock.cli.size_json import to_terminal, write_document
from penstock.cli.size_table import aligned, gib, model_lines, objectives, time_text
from penstock.config import EngineConfig
from penstock.dtypes import KvCacheDTypeOption, QuantizationName
from penstock.errors import ConfigError
from penstock.hardware import detect
from penstock.sizing.machine import MachineEstimate, predict
from penstock.sizing.machine_times import MachineTimes
from penstock.sizing.model import Precision, SizedModel
from penstock.sizing.search import STEP_TOKENS, Demanded
from penstock.threads import choose_threads

_HEAD = (
    *("weights", "KV", "memory", "fit", "decode 1", "8", "32"),
    *("TTFT", "TPOT", "tokens/s", "most open", "$/M in", "$/M out"),
)


def run_here(
    args: argparse.Namespace,
    model: SizedModel,
    demanded: Demanded,
    weights: Sequence[QuantizationName],
) -> int:
    """Measure, predict and print."""
    kv: Sequence[KvCacheDTypeOption] = args.kv_cache_dtype or ("auto",)
    if len(kv) > 1:
        raise UsageError("--this-machine measures one type of keys and values; name one")
    config = EngineConfig(
        threads=args.threads,
        kv_cache_dtype=kv[0],
        max_num_batched_tokens=args.max_num_batched_tokens,
    )
    budget = args.max_num_batched_tokens or STEP_TOKENS["cpu"]
    precisions = [Precision(each, config.kv_dtype(model.spec.dtype)) for each in weights]
    for each in precisions:
        _check_measurable(model, each, budget)
    hardware = detect()
    threads = choose_threads(args.threads, hardware)
    with BenchProgress() as progress:
        speeds = measure_speeds(threads.count)
        times = calibrate(weights, config, model.spec.dtype, progress)
    found = [
        predict(model, each, times, demanded, hardware.memory_available, budget)
        for each in precisions
    ]
    fitting = [each for each in found if each is not None]
    if not fitting:
        least = model.plan("cpu", precisions[-1], budget)
        raise ConfigError(
            f"this machine's {gib(hardware.memory_available)} that are free do not hold the model: "
            f"its weights alone take {gib(least.footprint.weights)} in {weights[-1]}; take a "
            "smaller model, or size another machine (--gpu)"
        )
    machine = describe_machine(speeds, threads.count, hardware)
    if args.json is not None:
        write_document(args, _document(machine, times, fitting))
    if not to_terminal(args):
        print_table(machine_rows(machine))
        print("\n".join(model_lines(args.model or "the demo model", model, "cpu", weights, budget)))
        print("\n".join(_lines(fitting, demanded, args.price)))
    return 0


def _check_measurable(model: SizedModel, precision: Precision, step_tokens: int) -> None:
    """Raise ConfigError where the calibration has no weights like the model's."""
    costs = model.plan("cpu", precision, step_tokens).costs
    forms = {each.form for each, _ in costs.counts if each.work == "product"}
    unknown = sorted(forms - {"int4", "int8", model.spec.dtype})
    if unknown:
        raise ConfigError(
            f"--this-machine cannot predict weights in {', '.join(unknown)} yet: the calibration "
            "has floats, int8 and int4; name the checkpoint that this one was made from, or "
            "measure it with penstock bench latency"
        )


def _lines(
    found: Sequence[MachineEstimate], demanded: Demanded, price: float | None
) -> Iterator[str]:
    w = demanded.workload
    yield (
        f"load     {demanded.concurrency} open requests, {w.isl:,} tokens in, {w.osl:,} out; "
        f"objectives: {objectives(demanded.slo)}"
    )
    yield ""
    yield from aligned([_HEAD, *(_row(each, price) for each in found)], left=2)
    yield ""
    meeting = [each for each in found if each.excess <= 1]
    if meeting:
        yield "next     'most open': so many requests may be open within the objectives"
        return
    nearest = min(found, key=lambda each: each.excess)
    served = f", which serves {nearest.most} of {demanded.concurrency}" if nearest.most else ""
    yield f"next     nothing meets the objectives; the nearest is {nearest.precision}{served}"
    if not nearest.most:
        yield (
            "         not even one request alone: fewer bits, drafts, a smaller model, or another "
            "machine (penstock size without --this-machine)"
        )


def _row(each: MachineEstimate, price: float | None) -> tuple[str, ...]:
    steps = dict(each.decode)
    costs = ("-", "-")
    if price is not None:
        second, share = price / 3600 * 1e6, each.at_load.prefill_share
        costs = (
            f"{second * share / each.at_load.input_tps:,.3f}",
            f"{second * (1 - share) / each.at_load.output_tps:,.3f}",
        )
    return (
        "as they are" if each.precision.weights == "none" else each.precision.weights,
        each.precision.kv,
        gib(each.room.weights + each.room.activations),
        f"{each.room.requests:,}",
        *(time_text(steps[n]) if n in steps else "-" for n in (1, 8, 32)),
        time_text(each.at_load.ttft),
        time_text(each.at_load.tpot),
        f"{each.at_load.output_tps:,.1f}",
        f"{each.most:,}",
        *costs,
    )


def _document(
    machine: Machine, times: MachineTimes, found: Sequence[MachineEstimate]
) -> dict[str, object]:
    return {
        "machine": msgspec.to_builtins(machine),
        "times": msgspec.to_builtins(times),
        "predictions": [
            {
                "weights": each.precision.weights,
                "kv": each.precision.kv,
                "requests_that_fit": each.room.requests,
                "most_open": each.most,
                "decode_s": {str(n): seconds for n, seconds in each.decode},
                "ttft": each.at_load.ttft,
                "tpot": each.at_load.tpot,
                "output_tps": each.at_load.output_tps,
                "excess": each.excess,
            }
            for each in found
        ],
    }
