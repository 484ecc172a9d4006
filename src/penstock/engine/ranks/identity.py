"""What must be the same for a rank and for rank 0, or they would compute different models."""

from __future__ import annotations

from typing import Final

from penstock.engine.engine_plan import EnginePlan, rank_limits
from penstock.engine.part_identity import (
    COMMON,
    PartIdentity,
    described,
    digest,
    types_of,
    weights_here,
)
from penstock.version import __version__
from penstock.weights.model_files import ModelFiles


class RankIdentity(PartIdentity, frozen=True, kw_only=True):
    """A rank's part of a model, as one process sees it."""

    backend: str
    limits: str

    @classmethod
    def of(cls, engine_plan: EnginePlan, files: ModelFiles, rank: int) -> RankIdentity:
        """Return that of a rank. Raises WeightError where files cannot be read."""
        return cls(
            penstock=__version__,
            backend=engine_plan.config.backend,
            types=types_of(engine_plan.config),
            plan=digest(described(engine_plan.ranks[rank])),
            limits=repr(rank_limits(engine_plan, rank)),
            weights=weights_here(engine_plan, files),
        )

    def differences(self, other: RankIdentity) -> list[str]:
        """Return what sets ``self`` apart from ``other``, rank 0's, in words; empty if they are
        equal."""
        return self.different(other, _WORDS, "rank 0")


_WORDS: Final = {**COMMON, "backend": "the backend", "limits": "the limits of steps"}
