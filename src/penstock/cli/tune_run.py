"""One tuning: the search, the verification, and the profile that is written."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from penstock.cli.bench_progress import BenchProgress
from penstock.cli.options import engine_config, engine_words
from penstock.cli.parser import UsageError
from penstock.cli.replayed_trace import check_times, replayed
from penstock.errors import ConfigError, PenstockError

if TYPE_CHECKING:
    from penstock.hardware import Hardware
    from penstock.profile import ObjectiveName
    from penstock.simulate.calibration import Calibration
    from penstock.simulate.machine_setups import Planned
    from penstock.tune.choice import Finalist
    from penstock.tune.load import TraceLoad
    from penstock.tune.search import Found, Scored
    from penstock.tune.simulator import Simulator
    from penstock.tune.space import Candidate, Space
    from penstock.tune.variants import Variants

_FINALISTS = 3


def tune(
    args: argparse.Namespace,
    load: TraceLoad,
    objective: ObjectiveName,
    hardware: Hardware,
    verify: bool,
) -> bool:
    """Tune for a load and what can be had of a machine by the options of the command line, and
    write and print what was found; returns whether it was stopped. Raises ConfigError where nothing
    is within the limits."""
    from penstock.cli.tune_table import print_tuning
    from penstock.frontend.open_sequences import MAX_WAITING
    from penstock.simulate.calibration import Calibration
    from penstock.simulate.configuration import Configuration
    from penstock.simulate.machine_setups import Planned
    from penstock.tune.choice import choose
    from penstock.tune.made import made_profile
    from penstock.tune.objective import check_objective
    from penstock.tune.search import Search
    from penstock.tune.simulator import Simulator
    from penstock.tune.space import check_names
    from penstock.written_file import write_json

    check_objective(objective, load.limits)
    check_names(args.allow, args.keep)
    default = _default(args)
    # With the profile, if there is one: another model's is refused.
    planned = Planned.of(Configuration("default", engine_config(args)), hardware)
    space = _space(args, default, planned, load, hardware)
    with BenchProgress() as progress:
        simulator = Simulator(
            space,
            load,
            hardware,
            [Calibration.read(path) for path in args.calibration],
            None if args.calibration else lambda each: _calibrated(each, progress),
            progress,
        )
        search = Search(
            space,
            simulator,
            objective,
            len(load.workload.recorded),
            args.seed,
            args.candidates,
            lambda name, total: progress.begin(name, total, "simulations"),
        )
        found = search.run()
        _check_served(found, simulator, load)
        finalists = _finalists(found, space, simulator)
        beyond = _beyond(finalists, simulator)
        if verify and not found.partial:
            finalists = _predicted(finalists, simulator, args.verify_seconds, progress)
    stopped, notes = found.partial or progress.stopped, list[str]()
    if verify and not stopped:
        stopped, finalists, notes = _verified(args, load, finalists)
    choice = choose(finalists, objective)
    notes += [*beyond, *_of_variants(space, choice.chosen.candidate)]
    if stopped:
        notes.append("interrupted before all was simulated and measured")
    profile = made_profile(
        planned.engine_plan, load, objective, choice, found.tried, MAX_WAITING, notes
    )
    write_json(args.out, profile)
    print_tuning(profile, finalists, choice, found, space, simulator, args.out)
    return stopped


def load_of(args: argparse.Namespace, trace: Path, slo: Sequence[str]) -> TraceLoad:
    """The load that the options ask for, of a trace. Raises ConfigError, and OSError of a file."""
    from penstock.bench.load.trace_files import TraceScale
    from penstock.service_level import parse_limit
    from penstock.tune.load import TraceLoad

    check_times(args.rate, args.speed, args.arrivals)
    scale = TraceScale(args.scale, args.speed or 1.0)
    load = TraceLoad(
        replayed(trace, scale, args.num_prompts),
        tuple(parse_limit(text) for text in slo),
        args.rate,
        args.arrivals or "poisson",
        args.concurrency,
        args.seed,
        scale.speed if args.rate is None else None,
    )
    load.arrivals(args.rate)  # refused before anything is measured
    return load


def _default(args: argparse.Namespace) -> Candidate:
    """What would be served otherwise."""
    from penstock.frontend.open_sequences import MAX_WAITING
    from penstock.tune.space import Candidate

    asked = engine_config(args)
    own = None if asked.profile is None else asked.profile.max_waiting
    waiting = next(each for each in (args.max_waiting, own, MAX_WAITING) if each is not None)
    return Candidate(msgspec.structs.replace(asked, profile=None), waiting)


def _space(
    args: argparse.Namespace,
    default: Candidate,
    planned: Planned,
    load: TraceLoad,
    hardware: Hardware,
) -> Space:
    from penstock.tune.space import Space

    config = planned.engine_plan.config
    free = hardware.memory_available - config.weight_bytes
    shared = load.summary().shared > 0
    return Space.of(
        default,
        config,
        max(free, 0),
        args.allow,
        args.keep,
        shared,
        _variants(args, default, hardware.cpu_model),
    )


def _variants(args: argparse.Namespace, default: Candidate, cpu_model: str) -> Variants | None:
    if args.variants is None:
        return None
    from penstock.tune.variants import Variants

    if default.engine.quantization != "none":
        raise UsageError(
            "argument --variants: they were judged with weights as they are; leave --quantization "
            "out"
        )
    return Variants.read(args.variants, Path(default.engine.model), args.max_loss, cpu_model)


def _calibrated(candidate: Candidate, progress: BenchProgress) -> Calibration:
    from penstock.cli.calibrate import calibrated

    return calibrated(candidate.engine, progress)


def _check_served(found: Found, simulator: Simulator, load: TraceLoad) -> None:
    """Raise ConfigError where nothing is served at all, or nothing within the limits, and say which
    candidate is nearest."""
    from penstock.tune.objective import distance

    best = found.ranked[0]
    if best.served.failed_share.mean >= 1:
        errors = simulator.runs[best.candidate].errors
        raise ConfigError(
            f"every request of the trace is refused ({', '.join(errors)}); where they are longer "
            "than the context, shrink them (--scale)"
        )
    goodput = best.served.goodput_per_s
    if goodput is None or goodput.mean > 0 or found.partial:
        return
    near = [(distance(simulator.runs[each.candidate], load.limits), each) for each in found.ranked]
    (times, limit), nearest = min(near, key=lambda each: each[0])
    raise ConfigError(
        f"none of {found.tried} configurations gives one answer within "
        f"{' '.join(map(str, load.limits))}; nearest is "
        f"{simulator.space.named(nearest.candidate)}, whose median answer takes {times:,.1f} times "
        f"{limit}; loosen that limit, offer less (--rate, --speed), or --allow types of fewer bits"
    )


def _finalists(found: Found, space: Space, simulator: Simulator) -> list[Finalist]:
    """The default, and the best others: each with other figures than those before it. If all of
    these rest on guesses beyond the calibration, the best that does not is there as well."""
    from penstock.tune.choice import Finalist

    def guessed(each: Scored) -> tuple[str, ...]:
        known = simulator.guesses.get(each.candidate)
        own = () if known is None else (known,)
        return (*own, *simulator.runs[each.candidate].beyond)

    chosen: list[Scored] = []
    for each in found.ranked:
        known = (found.default, *chosen)
        if all(each.served != other.served for other in known) and (
            len(chosen) < _FINALISTS or (all(map(guessed, chosen)) and not guessed(each))
        ):
            chosen.append(each)
    return [
        Finalist(each.candidate, space.named(each.candidate), each.served, None, guessed(each))
        for each in (found.default, *chosen)
    ]


def _of_variants(space: Space, chosen: Candidate) -> Iterator[str]:
    """What is to be known of variants: of the one that was chosen, and of those that lose too
    much."""
    note = space.variants.note(chosen.engine.model)
    if note is not None:
        yield note
    others = space.variants.others
    if others:
        told = ", ".join(f"{each.name} ({each.kl_mean:.4f})" for each in others)
        yield f"variants that lose more nats a token than was allowed were not tried: {told}"


def _beyond(finalists: Sequence[Finalist], simulator: Simulator) -> list[str]:
    """What is to be known of simulations that went beyond the calibration: finalists', of which
    one is taken for better than another, and how many others."""
    found = [
        f"{each.name}: its simulation went beyond the calibration: {'; '.join(each.guessed)}"
        for each in finalists
        if each.guessed
    ]
    guessed = sum(bool(run.beyond) for run in simulator.runs.values())
    if guessed:
        found.append(
            f"simulations of {guessed} of {len(simulator.runs)} configurations went beyond the "
            "calibration, so their ranks rest on guesses; calibrate with larger limits "
            "(penstock calibrate --max-num-seqs, --max-num-batched-tokens, --max-model-len)"
        )
    return found


def _predicted(
    finalists: Sequence[Finalist], simulator: Simulator, seconds: float, progress: BenchProgress
) -> list[Finalist]:
    """Finalists, simulated on what will be measured; after Ctrl-C, as they were."""
    from dataclasses import replace

    from penstock.bench.progress import Stopped
    from penstock.tune.objective import served_of

    try:
        progress.begin("the finalists' measurement", len(finalists), "simulations")
        return [
            replace(each, predicted=served_of(simulator.run(each.candidate, None, seconds)))
            for each in finalists
        ]
    except Stopped:
        return list(finalists)


def _verified(
    args: argparse.Namespace, load: TraceLoad, finalists: Sequence[Finalist]
) -> tuple[bool, list[Finalist], list[str]]:
    """Whether it was stopped, the finalists that could be served with what was measured, and
    notes."""
    from dataclasses import replace

    from penstock.cli.bench_serve_progress import ServeProgress
    from penstock.tune.verify import Verifier, served_by

    with ServeProgress() as progress:
        verifier = Verifier(
            load,
            args.verify_seconds,
            args.rounds,
            _serving,
            progress,
            lambda text: print(f"measuring {text}", file=sys.stderr),
            lambda: progress.stopped,
        )
        try:
            done = verifier.run({each.candidate: each.name for each in finalists})
        except PenstockError:
            if not progress.stopped:
                raise
            done = False
    notes = [f"{name} was not measured: {why}" for name, why in verifier.failed.items()]
    found = [
        replace(each, measured=served_by(runs) if runs else None)
        for each in finalists
        if (runs := verifier.measured.get(each.candidate, [])) or not done
        if each.name not in verifier.failed
    ]
    return not done, found, notes


@contextmanager
def _serving(candidate: Candidate) -> Iterator[str]:
    from penstock.simulate.server_process import serving

    words = [*engine_words(candidate.engine), "--max-waiting", str(candidate.max_waiting)]
    with serving([*words, "--log-level", "warning"]) as url:
        yield url
