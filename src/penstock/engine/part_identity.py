"""What identities of ranks and of stages have in common: each is of a process's part of a model."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import msgspec

from penstock.engine.engine_plan import EnginePlan
from penstock.plan.plan import Plan
from penstock.resolved_config import ResolvedConfig
from penstock.weights.identity import stamped_weights
from penstock.weights.model_files import ModelFiles


class PartIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a model, as one process sees it."""

    penstock: str
    types: str
    """Types of weights and of the KV cache, and what matrices are quantized to."""
    plan: str
    """Digest of the plans of the part's processes."""
    weights: str
    """Digest of the weight files, or the seed of dummy weights."""

    def different(self, other: PartIdentity, words: Mapping[str, str], whose: str) -> list[str]:
        """Return what sets ``self`` apart from ``other``, which is ``whose``, in the ``words`` of
        each field; empty if they are equal."""
        return [
            f"{words[name]} ({getattr(self, name)}, and {getattr(other, name)} of {whose})"
            for name in self.__struct_fields__
            if getattr(self, name) != getattr(other, name)
        ]


COMMON = {
    "penstock": "the version of Penstock",
    "types": "types and quantization",
    "plan": "the plan of operations",
    "weights": "the weight files",
}
"""The fields that all parts have, in words."""


def types_of(config: ResolvedConfig) -> str:
    """Return the types of weights and of the KV cache, and what matrices are quantized to."""
    schemes = config.schemes
    return f"{config.dtype}, {config.kv_cache_dtype}, {schemes.linear}, {schemes.head}"


def described(plan: Plan) -> tuple[object, ...]:
    """Return all of a plan that bits, and the sizes of what is exchanged, depend on."""
    return (
        *(plan.ops, plan.weights, plan.buffers, plan.kv_layers, plan.kv_runs),
        *(plan.state_layers, plan.key_columns, plan.ropes, plan.max_positions),
        plan.leaving,
    )


def weights_here(engine_plan: EnginePlan, files: ModelFiles) -> str:
    """Return what tells the weights from others on this machine: names, sizes and times of their
    files, which need not be read. Raises WeightError where these cannot be found."""
    config = engine_plan.config
    if config.load_format == "dummy":
        return f"dummy weights of seed {config.seed}"
    stamped = stamped_weights(files, engine_plan.spec.published)
    return digest([(str(path), stamp) for path, stamp in stamped])


def digest(described: object) -> str:
    """Return a short digest of what is described."""
    return hashlib.blake2b(repr(described).encode(), digest_size=8).hexdigest()
