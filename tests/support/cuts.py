"""The processes among which a model is cut."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Cut:
    """So many ranks share each layer, and so many stages have a part of the layers each."""

    ranks: int = 1
    stages: int = 1

    @property
    def options(self) -> dict[str, Any]:
        """With which an engine is started."""
        asked = {"tensor_parallel": self.ranks, "pipeline_parallel": self.stages}
        return {name: count for name, count in asked.items() if count > 1}

    def __str__(self) -> str:
        parts = [f"{self.ranks} ranks"] * (self.ranks > 1) + [f"{self.stages} stages"] * (
            self.stages > 1
        )
        return " x ".join(parts)


def ranks(count: int) -> Cut:
    return Cut(ranks=count)


def stages(count: int) -> Cut:
    return Cut(stages=count)
