"""What must be the same for a stage and for its engine, or they would compute different models."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from penstock.artifact.digests import DigestFile
from penstock.artifact.root import default_root
from penstock.engine.engine_plan import EnginePlan
from penstock.engine.part_identity import (
    COMMON,
    PartIdentity,
    described,
    digest,
    types_of,
    weights_here,
)
from penstock.version import __version__
from penstock.weights.identity import NoDigests, identify, stamped_weights
from penstock.weights.model_files import ModelFiles


class StageIdentity(PartIdentity, frozen=True, kw_only=True):
    """A stage's part of a model, as one process sees it. Of one elsewhere ``weights`` is a digest
    of every byte of the files."""

    layers: str

    @classmethod
    def of(
        cls, engine_plan: EnginePlan, files: ModelFiles, stage: int, *, near: bool
    ) -> StageIdentity:
        """Return that of a stage. ``near``: it is a process of this machine, for which the files
        need not be read. Raises WeightError where they cannot be."""
        own = engine_plan.stages[stage]
        plans = [described(plan) for plan in own.parts]
        return cls(
            penstock=__version__,
            layers=f"{own.layers[0]} to {own.layers[1] - 1}",
            types=types_of(engine_plan.config),
            plan=digest((plans, own.entering, own.groups)),
            weights=(weights_here if near else _weights_anywhere)(engine_plan, files),
        )

    def differences(self, other: StageIdentity) -> list[str]:
        """Return what sets ``self`` apart from ``other``, the engine's, in words; empty if they are
        equal."""
        return self.different(other, _WORDS, "the engine")


_WORDS: Final = {**COMMON, "layers": "the layers"}


def _weights_anywhere(engine_plan: EnginePlan, files: ModelFiles) -> str:
    """What tells the weights from others on any machine: all their bytes."""
    if engine_plan.config.load_format == "dummy":
        return weights_here(engine_plan, files)
    stamped = stamped_weights(files, engine_plan.spec.published)
    root = default_root()
    digests = None if root is None else DigestFile(Path(root))
    found = identify(stamped, digests or NoDigests())
    if digests is not None:
        digests.save()
    return digest([(file.bytes, file.digest) for file in found])
