"""What an artifact is of: all that the bytes of packed weights depend on."""

from __future__ import annotations

import hashlib
import platform
from pathlib import Path
from typing import Final

import msgspec

from penstock import __version__
from penstock.backends.base import Packing
from penstock.config import ResolvedConfig
from penstock.errors import ModelError
from penstock.models.heads import HeadsSpec
from penstock.plan.plan import Plan
from penstock.weights.identity import WeightFile, head_files, weight_files

FORMAT: Final = 1
"""Of manifest and files. Artifacts of another number are not read."""

_DIGEST_BYTES: Final = 6  # of a folder's name; the manifest has the whole key


class ArtifactKey(msgspec.Struct, frozen=True, kw_only=True):
    """Packed weights of equal keys are equal, byte by byte."""

    config: str
    """Digest of config.json."""
    weights: tuple[WeightFile, ...] = ()
    dummy_seed: int | None = None
    """Instead of files, for dummy weights."""
    dtype: str
    linear: str
    """What the matrices are quantized to, or ``none``."""
    head: str
    plan: str
    """Digest of the plan's ops that have weights."""
    machine: str
    isa: str
    layout: int
    penstock: str
    format: int = FORMAT

    @property
    def scheme(self) -> str:
        """What most weights are kept in, as part of a file's name."""
        if self.linear == "none":
            return self.dtype
        return self.linear.replace(" by ", "-g").replace(" with zero points", "z")

    def digest(self) -> str:
        encoded = msgspec.json.encode(self)
        return hashlib.blake2b(encoded, digest_size=_DIGEST_BYTES).hexdigest()

    def differences(self, other: ArtifactKey) -> list[str]:
        """What sets ``self`` apart from ``other``, in words; empty if they are equal."""
        words = []
        for field in self.__struct_fields__:
            mine, its = getattr(self, field), getattr(other, field)
            if mine == its:
                continue
            if field in _IN_WORDS:
                words.append(_IN_WORDS[field])
            else:
                words.append(f"{field} {mine}, not {its}")
        return words


_IN_WORDS: Final = {
    "config": "another config.json",
    "weights": "other weight files",
    "dummy_seed": "another seed",
    "plan": "another plan of operations",
}


def artifact_key(config: ResolvedConfig, plan: Plan, packing: Packing) -> ArtifactKey:
    """The key of the engine that ``config`` and ``plan`` describe.

    Reads headers and samples of the weight files, not the weights. Raises ModelError or WeightError
    where files cannot be read.
    """
    folder = Path(config.model_path)
    dummy = config.load_format == "dummy"
    schemes = config.schemes
    files: tuple[WeightFile, ...] = ()
    if not dummy and isinstance(plan.spec, HeadsSpec):
        files = head_files(folder, Path(config.target_path) if config.target_path else None)
    elif not dummy:
        files = weight_files(folder)
    return ArtifactKey(
        config=_digest_file(folder / "config.json"),
        weights=files,
        dummy_seed=config.seed if dummy else None,
        dtype=config.dtype,
        linear=str(schemes.linear or "none"),
        head=str(schemes.head or "none"),
        plan=_digest(repr([op for op in plan.ops if op.weights]).encode()),
        machine=platform.machine(),
        isa=packing.isa,
        layout=packing.layout,
        penstock=__version__,
    )


def _digest(text: bytes) -> str:
    return hashlib.blake2b(text, digest_size=16).hexdigest()


def _digest_file(path: Path) -> str:
    try:
        return _digest(path.read_bytes())
    except OSError as e:
        raise ModelError(f"cannot read {path}: {e.strerror}") from e
