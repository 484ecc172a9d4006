"""The key of an artifact: all that the bytes of packed weights depend on."""

from __future__ import annotations

import hashlib
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from penstock.errors import ModelError
from penstock.gguf.names import is_gguf
from penstock.interface.weights import Packing
from penstock.plan.plan import Plan
from penstock.regular_file import read_regular
from penstock.resolved_config import ResolvedConfig
from penstock.tokenizer.load import tokenizer_files
from penstock.version import __version__
from penstock.weights.calibration_text import calibration_digest
from penstock.weights.identity import (
    Digests,
    NoDigests,
    StampedFile,
    WeightFile,
    identify,
    stamped,
    stamped_weights,
)
from penstock.weights.model_files import ModelFiles

FORMAT: Final = 2
"""Version of the artifact format, of the manifest and of the files. Artifacts of another version
are not read."""

_DIGEST_BYTES: Final = 6  # of a folder's name; the manifest has the whole key


class ArtifactKey(msgspec.Struct, frozen=True, kw_only=True):
    """Identifies packed weights: if two keys are equal, the packed weights are equal byte for
    byte."""

    config: str
    """Digest of config.json; empty for a GGUF file."""
    weights: tuple[WeightFile, ...] = ()
    dummy_seed: int | None = None
    """Seed of dummy weights, which have no files; None for weights from files."""
    dtype: str
    linear: str
    """Quantization scheme of the matrices, or ``none``."""
    head: str
    calibration: str = ""
    """Digest of the text that the model read before its matrices were rounded, and of the plan's
    rotations; empty if it read none."""
    tokenizer: tuple[WeightFile, ...] = ()
    """The files of the tokenizer of that text, but for those among ``weights``."""
    plan: str
    """Digest of the plan's ops that have weights, and of where the checkpoint has these."""
    rank: int = 0
    world: int = 1
    """Number of ranks that share the model, of which ``rank`` has these weights."""
    stage: int = 0
    stages: int = 1
    """Number of stages among which the layers are divided, of which ``stage`` has these weights."""
    machine: str
    isa: str
    layout: int
    penstock: str
    format: int = FORMAT

    @property
    def scheme(self) -> str:
        """The format in which most weights are kept, as part of a file's name."""
        if self.linear == "none":
            return self.dtype
        return self.linear.replace(" by ", "-g").replace(" with zero points", "z")

    @property
    def part(self) -> str:
        """Whose weights these are, as part of a file's name; empty where one process has all."""
        stage = "" if self.stages == 1 else f"-stage{self.stage}of{self.stages}"
        return stage + ("" if self.world == 1 else f"-rank{self.rank}of{self.world}")

    def digest(self) -> str:
        encoded = msgspec.json.encode(self)
        return hashlib.blake2b(encoded, digest_size=_DIGEST_BYTES).hexdigest()

    def differences(self, other: ArtifactKey) -> list[str]:
        """What sets ``self`` apart from ``other``, in words; empty if they are equal.

        They are equal, too, if ``self`` is of a manifest of before keys had all their fields, which
        come up as their defaults. The digest in its artifact's name tells it apart.
        """
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
    "rank": "another rank",
    "world": "another number of ranks",
    "stage": "another stage",
    "stages": "another number of stages",
    "calibration": "another text to calibrate by",
    "tokenizer": "another tokenizer of the text to calibrate by",
}


@dataclass(frozen=True)
class ArtifactSource:
    """An artifact's key as far as it is known before the weight files are hashed."""

    key: ArtifactKey
    """The key, without the digests of the files."""
    files: tuple[StampedFile, ...]
    """The weight files, as they were when this was made."""

    @classmethod
    def of(
        cls,
        config: ResolvedConfig,
        plan: Plan,
        packing: Packing,
        opened: ModelFiles | None = None,
        rank: int = 0,
        stage: int = 0,
    ) -> ArtifactSource:
        """Return the source for an engine with this ``config`` and ``plan``, which is that of a
        ``rank`` where several share the model, and of a ``stage`` where its layers are divided.

        Reads the headers of the weight files, unless the model was ``opened`` before. Raises
        ModelError or WeightError where files cannot be read.
        """
        folder = Path(config.model_path)
        dummy = config.load_format == "dummy"
        schemes = config.schemes
        files: tuple[StampedFile, ...] = ()
        others: tuple[StampedFile, ...] = ()
        if not dummy:
            files = stamped_weights(opened or folder, plan.spec.published)
            if config.target_path is not None:
                files += stamped_weights(Path(config.target_path))
            if config.quantization_calibration:
                its = tokenizer_files(Path(config.tokenizer_path))
                others = stamped(set(its) - {file.path for file in files})
        key = ArtifactKey(
            # The configuration of a GGUF file is in the file, whose digest is among the weights'.
            config="" if is_gguf(folder) else _digest_file(folder / "config.json"),
            weights=_unidentified(files),
            tokenizer=_unidentified(others),
            dummy_seed=config.seed if dummy else None,
            dtype=config.dtype,
            linear=str(schemes.linear or "none"),
            head=str(schemes.head or "none"),
            calibration=_calibration(plan) if config.quantization_calibration else "",
            plan=_digest(_described(plan).encode()),
            rank=rank,
            world=config.tensor_parallel,
            stage=stage,
            stages=config.pipeline_parallel,
            machine=platform.machine(),
            isa=packing.isa,
            layout=packing.layout,
            penstock=__version__,
        )
        return cls(key, files + others)

    @property
    def conclusive(self) -> bool:
        """Whether equal stamps of the files, now and later, mean that they did not change."""
        return all(file.stamp.conclusive for file in self.files)

    def identified(self, digests: Digests) -> ArtifactKey:
        """Return the whole key. Raises WeightError if a file has changed since this was made."""
        found, weights = identify(self.files, digests), len(self.key.weights)
        return msgspec.structs.replace(self.key, weights=found[:weights], tokenizer=found[weights:])


def artifact_key(
    config: ResolvedConfig, plan: Plan, packing: Packing, digests: Digests | None = None
) -> ArtifactKey:
    """The key of the engine that ``config`` and ``plan`` describe.

    Reads those weight files whose ``digests`` are not remembered. Raises ModelError or WeightError
    where files cannot be read.
    """
    return ArtifactSource.of(config, plan, packing).identified(digests or NoDigests())


def _unidentified(files: tuple[StampedFile, ...]) -> tuple[WeightFile, ...]:
    return tuple(WeightFile(name=path.name, bytes=stamp.bytes, digest="") for path, stamp in files)


def _calibration(plan: Plan) -> str:
    """What the inputs depend on that are measured, besides weights and tokenizer."""
    return _digest(f"{calibration_digest()} {plan.ropes}".encode())


def _digest(text: bytes) -> str:
    return hashlib.blake2b(text, digest_size=16).hexdigest()


def _digest_file(path: Path) -> str:
    try:
        return _digest(read_regular(path))
    except OSError as e:
        raise ModelError(f"cannot read {path}: {e.strerror}") from e


def _described(plan: Plan) -> str:
    """The ops that have weights, where the checkpoint has these, and which keys are scaled."""
    ops = [op for op in plan.ops if op.weights]
    return repr(ops) + repr(list(plan.weights.items())) + repr(plan.key_columns)
