"""What messages call the fields of a configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Wording:
    """How messages speak of a configuration that was made of a file of another kind, whose users
    have no ``config.json``."""

    keys: Mapping[str, str] = field(default_factory=dict, hash=False)
    """What the file calls fields, by their names; of sections with those before them and a dot, as
    ``rope_scaling.factor``."""
    fix: str = "download the file again, or convert the model again"
    """What helps where a field is missing."""

    def name(self, path: str) -> str:
        """What the file calls a field; for one that was worked out, its name with a hint."""
        return self.keys.get(path) or f"what config.json calls {path}"
