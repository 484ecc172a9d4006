"""Makes the profile of a tuning."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path

from penstock.engine.loader import EnginePlan
from penstock.hardware import detect
from penstock.profile import (
    VERSION,
    MadeFor,
    MadeForMachine,
    MadeForModel,
    ObjectiveName,
    Profile,
)
from penstock.tune.choice import Choice
from penstock.tune.load import TraceLoad
from penstock.version import __version__


def made_profile(
    planned: EnginePlan,
    load: TraceLoad,
    objective: ObjectiveName,
    choice: Choice,
    configurations: int,
    usual_waiting: int,
    notes: Sequence[str] = (),
) -> Profile:
    """The document of what was chosen; ``planned`` is what the default runs here."""
    config = planned.config
    chosen = choice.chosen.candidate
    return Profile(
        version=VERSION,
        penstock=__version__,
        made=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        options=chosen.options(usual_waiting),
        made_for=MadeFor(
            model=MadeForModel(
                name=_name(chosen.engine.model),
                architecture=planned.spec.architecture,
                parameters=planned.plan.num_parameters,
            ),
            machine=MadeForMachine(
                cpu_model=detect().cpu_model, backend=config.backend, threads=config.threads
            ),
            workload=load.summary(),
        ),
        slo=tuple(map(str, load.limits)),
        objective=objective,
        verified=choice.verified,
        chosen=choice.chosen.tried,
        default=choice.default.tried,
        configurations=configurations,
        seed=load.seed,
        notes=(*choice.notes, *notes),
    )


def _name(model: str) -> str:
    """A model's name, without the folders of this machine."""
    if not model:
        return "the demo model"
    return Path(model).resolve().name if Path(model).exists() else model
