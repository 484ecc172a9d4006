"""Tiny models of every family, option and rotary kind, for comparisons with transformers.

Each module here is of one family, named as its ``model_type``, and has a ``FAMILY``.
"""

from __future__ import annotations

import pkgutil
from importlib import import_module
from typing import Any

from support.families.family import TinyFamily

FAMILIES: dict[str, TinyFamily] = {
    module.name: import_module(f"{__name__}.{module.name}").FAMILY
    for module in pkgutil.iter_modules(__path__)
    if module.name != "family"
}

PUBLISHED = {name: each.published for name, each in FAMILIES.items() if each.published is not None}
"""Configurations as published, by family."""


def edited(family: str, **changes: Any) -> dict[str, Any]:
    """A published configuration with fields changed, or removed where the change is ``...``."""
    config = {**PUBLISHED[family], **changes}
    return {name: value for name, value in config.items() if value is not ...}
