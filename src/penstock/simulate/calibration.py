"""A model on this machine, measured: the constants of its steps and of its server, in a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec

from penstock.errors import ConfigError
from penstock.simulate.front_end import FrontTimes
from penstock.simulate.model_key import Covered, ModelKey
from penstock.simulate.self_check import SelfCheck
from penstock.simulate.step_times import StepTimes
from penstock.simulate.uneven import Unevenness

VERSION: Final = 4
"""The version of calibration files."""


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """What ``penstock calibrate`` writes."""

    version: int
    made: str
    model: str
    """Its name, as it was given."""
    key: ModelKey
    steps: StepTimes
    front: FrontTimes
    template: int
    """Tokens that the chat template adds to every prompt."""
    covered: Covered
    machine: dict[str, Any]
    beside: StepTimes | None = None
    """What steps take while ``neighbours`` compute on the same machine; None: not measured."""
    neighbours: int = 0
    uneven: Unevenness | None = None
    """How much steps of the same size differ under load; None: not known."""
    checked: SelfCheck | None = None
    """How well its rounds agree; None: nobody has looked."""

    @classmethod
    def read(cls, path: Path) -> Calibration:
        """Raises ConfigError where the file is none of this version, and OSError."""
        try:
            found = msgspec.json.decode(path.read_bytes(), type=cls)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"{path} is no calibration ({error}); make one: penstock calibrate MODEL --out FILE"
            ) from None
        if found.version != VERSION:
            raise ConfigError(
                f"{path} is a calibration of version {found.version}, and this Penstock reads "
                f"{VERSION}; make it anew: penstock calibrate MODEL --out FILE"
            )
        if not found.steps.tokens or len(found.steps.tokens) != len(found.steps.rows):
            raise ConfigError(f"{path} is a damaged calibration: its steps have no times")
        return found
