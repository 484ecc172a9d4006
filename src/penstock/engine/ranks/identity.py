"""What must be the same for a rank and for rank 0, or they would compute different models."""

from __future__ import annotations

import hashlib
from typing import Final

import msgspec

from penstock.engine.engine_plan import EnginePlan, rank_limits
from penstock.version import __version__
from penstock.weights.identity import stamped_weights
from penstock.weights.model_files import ModelFiles


class RankIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """A rank's part of a model, as one process sees it."""

    penstock: str
    backend: str
    types: str
    """Types of weights and of the KV cache, and what matrices are quantized to."""
    plan: str
    """Digest of the rank's plan."""
    limits: str
    weights: str
    """Digest of the names, sizes and times of the weight files, or the seed of dummy weights."""

    @classmethod
    def of(cls, engine_plan: EnginePlan, files: ModelFiles, rank: int) -> RankIdentity:
        """Return that of a rank. Raises WeightError where files cannot be read."""
        config, schemes = engine_plan.config, engine_plan.config.schemes
        plan = engine_plan.ranks[rank]
        described = (plan.ops, plan.weights, plan.buffers, plan.kv_layers, plan.kv_runs)
        states = (plan.state_layers, plan.key_columns, plan.ropes, plan.max_positions)
        weights = f"dummy weights of seed {config.seed}"
        if config.load_format != "dummy":
            stamped = stamped_weights(files, engine_plan.spec.published)
            weights = _digest(repr([(str(path), stamp) for path, stamp in stamped]))
        return cls(
            penstock=__version__,
            backend=config.backend,
            types=f"{config.dtype}, {config.kv_cache_dtype}, {schemes.linear}, {schemes.head}",
            plan=_digest(repr((described, states))),
            limits=repr(rank_limits(engine_plan, rank)),
            weights=weights,
        )

    def differences(self, other: RankIdentity) -> list[str]:
        """Return what sets ``self`` apart from ``other``, in words; empty if they are equal."""
        return [
            f"{_WORDS[name]} ({getattr(self, name)}, and {getattr(other, name)} of rank 0)"
            for name in self.__struct_fields__
            if getattr(self, name) != getattr(other, name)
        ]


_WORDS: Final = {
    "penstock": "the version of Penstock",
    "backend": "the backend",
    "types": "types and quantization",
    "plan": "the plan of operations",
    "limits": "the limits of steps",
    "weights": "the weight files",
}


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
