"""Profiles of the demo model, as ``penstock tune`` would write them."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.config import EngineConfig
from penstock.engine.loader import plan_engine
from penstock.hardware import detect
from penstock.profile import (
    VERSION,
    Figure,
    Lengths,
    MadeFor,
    MadeForMachine,
    MadeForModel,
    Profile,
    ProfileOptions,
    Served,
    Tried,
    Workload,
)
from penstock.version import __version__

LENGTHS = Lengths(mean=100.0, p50=90.0, p90=200.0, p99=400.0, longest=512)


def served(goodput: float) -> Served:
    return Served(
        goodput_per_s=Figure(mean=goodput),
        good_share=Figure(mean=0.5),
        failed_share=Figure(mean=0.0),
        output_tokens_per_s=Figure(mean=1000.0, low=990.0, high=1010.0),
        ttft_p99=Figure(mean=0.4),
        tpot_p99=None,
        e2el_p99=Figure(mean=2.0),
    )


def profile_of(options: ProfileOptions, **changes: Any) -> Profile:
    """One of the demo model on this machine's CPU."""
    planned = plan_engine(EngineConfig(backend="cpu"))
    model = MadeForModel(
        name="the demo model",
        architecture=planned.spec.architecture,
        parameters=planned.plan.num_parameters,
    )
    machine = MadeForMachine(
        cpu_model=detect().cpu_model, backend="cpu", threads=planned.config.threads
    )
    return profile_for(model, machine, options, **changes)


def profile_of_another(options: ProfileOptions, **changes: Any) -> Profile:
    """One of a model that is not here."""
    model = MadeForModel(name="other/8B", architecture="OtherForCausalLM", parameters=8 * 10**9)
    machine = MadeForMachine(cpu_model="a CPU", backend="cpu", threads=8)
    return profile_for(model, machine, options, **changes)


def profile_for(
    model: MadeForModel, machine: MadeForMachine, options: ProfileOptions, **changes: Any
) -> Profile:
    made_for = MadeFor(
        model=model,
        machine=machine,
        workload=Workload(
            source="trace.csv",
            requests=2000,
            per_s=5.4,
            concurrency=None,
            input_tokens=LENGTHS,
            output_tokens=LENGTHS,
            shared=0.0,
        ),
    )
    made = Profile(
        version=VERSION,
        penstock=__version__,
        made="2026-01-01T00:00:00+00:00",
        options=options,
        made_for=made_for,
        slo=("ttft:500ms",),
        objective="goodput",
        verified=True,
        chosen=Tried(predicted=served(4.0), measured=served(3.9)),
        default=Tried(predicted=served(2.0), measured=served(2.1)),
        configurations=40,
        seed=0,
    )
    return msgspec.structs.replace(made, **changes)
