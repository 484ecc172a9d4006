"""What must be the same for a stage and for its engine, or they would compute different models."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

import msgspec

from penstock.artifact.digests import DigestFile
from penstock.artifact.root import default_root
from penstock.engine.engine_plan import EnginePlan
from penstock.version import __version__
from penstock.weights.identity import NoDigests, identify, stamped_weights
from penstock.weights.model_files import ModelFiles


class StageIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """A stage's part of a model, as one process sees it."""

    penstock: str
    layers: str
    types: str
    """Types of weights and of the KV cache, and what matrices are quantized to."""
    plan: str
    """Digest of the stage's plan."""
    weights: str
    """Digest of every byte of the weight files, on one machine of their names, sizes and times; or
    the seed of dummy weights."""

    @classmethod
    def of(
        cls, engine_plan: EnginePlan, files: ModelFiles, stage: int, *, near: bool
    ) -> StageIdentity:
        """Return that of a stage. ``near``: it is a process of this machine, for which the files
        need not be read. Raises WeightError where they cannot be."""
        config, schemes = engine_plan.config, engine_plan.config.schemes
        own = engine_plan.stages[stage]
        plan = own.plan
        described = (plan.ops, plan.weights, plan.buffers, plan.kv_layers, plan.kv_runs)
        states = (plan.state_layers, plan.key_columns, plan.ropes, plan.max_positions)
        handed = (plan.leaving, own.entering, own.groups)
        return cls(
            penstock=__version__,
            layers=f"{own.layers[0]} to {own.layers[1] - 1}",
            types=f"{config.dtype}, {config.kv_cache_dtype}, {schemes.linear}, {schemes.head}",
            plan=_digest(repr((described, states, handed))),
            weights=_weights(engine_plan, files, near),
        )

    def differences(self, other: StageIdentity) -> list[str]:
        """Return what sets ``self`` apart from ``other``, the engine's, in words; empty if they are
        equal."""
        return [
            f"{_WORDS[name]} ({getattr(self, name)}, and {getattr(other, name)} of the engine)"
            for name in self.__struct_fields__
            if getattr(self, name) != getattr(other, name)
        ]


def _weights(engine_plan: EnginePlan, files: ModelFiles, near: bool) -> str:
    config = engine_plan.config
    if config.load_format == "dummy":
        return f"dummy weights of seed {config.seed}"
    stamped = stamped_weights(files, engine_plan.spec.published)
    if near:
        return _digest(repr([(str(path), stamp) for path, stamp in stamped]))
    root = default_root()
    digests = None if root is None else DigestFile(Path(root))
    found = identify(stamped, digests or NoDigests())
    if digests is not None:
        digests.save()
    return _digest(repr([(file.bytes, file.digest) for file in found]))


_WORDS: Final = {
    "penstock": "the version of Penstock",
    "layers": "the layers",
    "types": "types and quantization",
    "plan": "the plan of operations",
    "weights": "the weight files",
}


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
