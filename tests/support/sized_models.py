"""Models to size: published shapes, of which the configuration alone is needed."""

from __future__ import annotations

import json
from pathlib import Path

from penstock.models.registry import read_spec
from penstock.models.spec import ModelSpec

_CONFIGS = Path(__file__).parents[1] / "sizing" / "configs"


def published(name: str) -> ModelSpec:
    """The model of ``tests/sizing/configs/NAME.json``. Contexts are longer than published, for
    tables of what keys and values would take there."""
    return read_spec(json.loads((_CONFIGS / f"{name}.json").read_text()))


def shape(name: str) -> ModelSpec:
    """The model of ``benchmarks/configs/NAME``."""
    folder = Path(__file__).parents[2] / "benchmarks" / "configs" / name
    return read_spec(json.loads((folder / "config.json").read_text()))
