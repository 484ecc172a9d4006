"""The record of how a checkpoint is made: a file in its folder, from the first to the last."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.version import __version__
from penstock.weights.identity import weight_files

if TYPE_CHECKING:
    from penstock.quantize.mixed import BudgetedQuantization
    from penstock.quantize.quantization import Quantization
    from penstock.quantize.samples import TrainingText

RECORD: Final = "penstock_quantization.json"
"""The file's name."""
SENSITIVITY: Final = "sensitivity"
"""An entry that is added at the end: what bits were chosen by."""
FINE_TUNING: Final = "fine_tuning"
"""Another: what training after rounding has gained."""

_CONFIG: Final = "config"


def record_of(
    work: Quantization | BudgetedQuantization,
    settings: Mapping[str, object],
    fine_tune_text: TrainingText | None = None,
) -> dict[str, object]:
    """What a checkpoint is made of, and by which ``settings``: where this is the same, so are its
    bytes. Raises WeightError."""
    trained = {} if fine_tune_text is None else {"fine_tune_text": fine_tune_text.source}
    return {
        **trained,
        **settings,
        "penstock": __version__,
        "source": source_files(work.source.folder),
        _CONFIG: hashlib.sha256(json.dumps(work.config).encode()).hexdigest(),
        "calibration": None if work.samples is None else work.samples.source,
    }


def source_files(folder: Path) -> list[str]:
    """The files of a checkpoint's weights, as a record names them. Raises WeightError."""
    return [f"{each.name}: {each.bytes} bytes, {each.digest}" for each in weight_files(folder)]


def differing(before: Mapping[str, object], record: Mapping[str, object]) -> list[str]:
    """The entries in which two records are not the same, of those that are made first. What
    ``config.json`` says is among them only where none of those that it depends on is."""
    own = json.loads(json.dumps(record))
    keys = sorted({*before, *own} - {SENSITIVITY, FINE_TUNING})
    found = [key for key in keys if before.get(key) != own.get(key)]
    return [key for key in found if key != _CONFIG] or found
