"""Makes a calibration: measures steps and a server, and finds the constants in what was recorded.

The two are apart: what was recorded can be written, and fitted again without the machine.
"""

from __future__ import annotations

import datetime
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from penstock.bench.progress import Progress
from penstock.config import EngineConfig
from penstock.engine.loader import EnginePlan
from penstock.errors import ConfigError
from penstock.simulate.calibration import VERSION, Calibration
from penstock.simulate.engine_log import read_log
from penstock.simulate.fitted import Fitted, fitted
from penstock.simulate.front_end import NO_FRONT
from penstock.simulate.machine_setups import key_of, measured_setup
from penstock.simulate.measured_steps import measure_steps
from penstock.simulate.recording import VERSION as RECORDING_VERSION
from penstock.simulate.recording import Recording
from penstock.simulate.self_check import self_check, undisturbed
from penstock.simulate.server_process import serving
from penstock.simulate.server_rounds import measured_rounds
from penstock.simulate.setup import Setup


def record(
    config: EngineConfig,
    words: Sequence[str],
    progress: Progress,
    neighbours: int,
    machine: dict[str, Any],
) -> tuple[Recording, EnginePlan]:
    """Measure what ``config`` runs here: its steps alone, beside so many ``neighbours``, and those
    of a server that is started with ``words`` and loaded in rounds.

    ``machine`` is kept with it. Raises what loading a model and starting a server does.
    """
    steps = measure_steps(config, progress, neighbours)
    plan = steps.engine_plan
    setup = measured_setup("calibrated", plan, steps.times, NO_FRONT)
    with tempfile.TemporaryDirectory(prefix="penstock-calibrate-") as folder:
        log = Path(folder) / "engine.log"
        with serving(words, log) as url:
            loads = measured_rounds(url, setup, progress)
        engine = read_log(log)
    recording = Recording(
        version=RECORDING_VERSION,
        made=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        model=config.model or "the demo model",
        key=key_of(plan),
        windows=steps.times.windows,
        covered=steps.covered,
        alone=steps.alone,
        loads=loads,
        engine=engine,
        beside=steps.beside,
        neighbours=neighbours,
        machine=machine,
    )
    return recording, plan


def calibration_of(recording: Recording, plan: EnginePlan) -> Calibration:
    """The constants of what was recorded, and how well its rounds agree. ``plan`` is what the
    server ran. Raises ConfigError where that is something else."""
    if told := recording.key.differences(key_of(plan)):
        raise ConfigError(
            f"the recording is of other options: {', '.join(told)}; give those that it was made "
            "with"
        )
    kept, left_out = undisturbed(recording)
    found = fitted(kept)

    def setup_of(each: Fitted) -> Setup:
        return replace(
            measured_setup("calibrated", plan, each.steps, each.front),
            template=each.template,
            uneven=each.uneven,
        )

    return Calibration(
        version=VERSION,
        made=recording.made,
        model=recording.model,
        key=recording.key,
        steps=found.steps,
        front=found.front,
        template=found.template,
        uneven=found.uneven,
        covered=recording.covered,
        beside=recording.beside,
        neighbours=recording.neighbours,
        machine=recording.machine,
        checked=self_check(kept, found, setup_of, left_out),
    )
