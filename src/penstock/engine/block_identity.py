"""What must be the same for two engines, or the blocks of one would not be what the other
computes."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from penstock.artifact.digests import DigestFile
from penstock.artifact.key import ArtifactKey, ArtifactSource
from penstock.backends.registry import backend
from penstock.engine.engine_plan import EnginePlan
from penstock.interface.weights import Packing
from penstock.weights.identity import NoDigests
from penstock.weights.model_files import ModelFiles


class BlockIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """All that the bits of a block depend on, besides its tokens and what came before them."""

    weights: str
    """Digest of every byte of the weights, of how they are rounded, and of the plan that multiplies
    them (``artifact.key.ArtifactKey``, without what it says of this machine)."""
    kv_dtype: str
    kv_layout: int
    kv_groups: str
    """What each group of layers caches."""
    rotations: str
    """Digest of how keys are rotated: of some models the longest context decides."""
    penstock: str
    kernels: str
    """The backend, and its instruction set where it has several, or the kind of its device and
    what compiled its kernels."""

    @classmethod
    def of(cls, engine_plan: EnginePlan, files: ModelFiles | None = None) -> BlockIdentity:
        """That of an engine, whose model may have been opened before. Reads all weights, unless
        their digests are remembered.

        Raises ModelError or WeightError where files cannot be read.
        """
        config, plan = engine_plan.config, engine_plan.plan
        used = backend(config.backend)
        packing = used.packing()
        source = ArtifactSource.of(config, plan, packing or Packing("", 0), files)
        if config.artifact_dir is None:
            key = source.identified(NoDigests())
        else:
            digests = DigestFile(Path(config.artifact_dir))
            key = source.identified(digests)
            with contextlib.suppress(OSError):  # they are computed again
                digests.save()
        kernels = used.kernel_kind(config.deterministic) or key.isa
        groups = [(group.window, group.layers) for group in plan.kv_groups]
        return cls(
            weights=_anywhere(key).digest(),
            kv_dtype=plan.kv_dtype,
            kv_layout=used.block_layout,
            kv_groups=_digest(repr((groups, plan.kv_layers))),
            rotations=_digest(repr(plan.ropes)),
            penstock=key.penstock,
            kernels=f"{config.backend} {kernels}".strip(),
        )

    def differences(self, other: BlockIdentity, any_kernels: bool = False) -> list[str]:
        """What sets ``self`` apart from ``other``, in words; empty if blocks may be exchanged."""
        return [
            words(getattr(self, name), getattr(other, name))
            for name, words in _WORDS.items()
            if getattr(self, name) != getattr(other, name)
            and not (any_kernels and name == "kernels")
        ]


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _anywhere(key: ArtifactKey) -> ArtifactKey:
    return msgspec.structs.replace(key, machine="", isa="", layout=0)


_WORDS: Final[dict[str, Callable[[object, object], str]]] = {
    "penstock": lambda mine, its: f"Penstock {its}, not {mine}",
    "weights": lambda mine, its: f"other weights, or otherwise rounded ({its}, not {mine})",
    "kv_dtype": lambda mine, its: f"a KV cache in {its}, not {mine}",
    "kv_layout": lambda mine, its: f"layout {its} of blocks, not {mine}",
    "kv_groups": lambda mine, its: "other groups of cached layers",
    "rotations": lambda mine, its: "other rotations of keys; give both the same --max-model-len",
    "kernels": lambda mine, its: (
        f"kernels {its}, not {mine}, whose last bits may differ; --handover-any-kernels on the "
        "decode engine takes them all the same"
    ),
}
