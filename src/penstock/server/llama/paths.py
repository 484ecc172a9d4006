"""The paths of the dialect's endpoints."""

from __future__ import annotations

COMPLETION = "/completion"
COMPLETIONS = "/completions"
"""Another name of the same."""
INFILL = "/infill"
TEMPLATE = "/apply-template"
PROPS = "/props"
"""Short for properties."""
SLOTS = "/slots"

# Those of its router, which has several models.
MODELS = "/models"
LOAD = "/models/load"
UNLOAD = "/models/unload"
