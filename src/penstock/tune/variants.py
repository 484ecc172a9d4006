"""Quantized variants of a model, as ``penstock quantize --compare`` has judged them: which lose
little enough to be served, and how fast those are that nobody has calibrated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from penstock.errors import ConfigError
from penstock.models.json_objects import read_json_object
from penstock.quantize.comparison import Variant
from penstock.quantize.record import RECORD
from penstock.simulate.calibration import Calibration
from penstock.simulate.machine_setups import Planned
from penstock.simulate.stage_times import read_bytes
from penstock.weights.identity import weight_files

KIND: Final = "quantization"
"""What a comparison says that it is of."""


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """``comparison.json``, as far as it is read."""

    comparison: str
    variants: tuple[Variant, ...]
    windows: int
    window: int
    """Tokens of each of the windows by which variants were judged."""
    cpu: str = ""
    """The machine's, on which they were timed."""


@dataclass(frozen=True)
class Variants:
    """Checkpoints in the place of the model, by their folders, as an engine is given them."""

    found: Mapping[str, Variant] = field(default_factory=dict)
    """Those that lose no more than was allowed, the largest first."""
    others: tuple[Variant, ...] = ()
    """Those that lose more."""
    judged: str = ""
    """The text by which they were judged, in words."""
    tokens_per_s: Mapping[str, float] = field(default_factory=dict)
    """What one stream decodes with each checkpoint, the model's own among them, by its folder;
    empty where another machine's CPU has timed them."""

    @classmethod
    def read(cls, path: Path, model: Path, most: float, cpu: str) -> Variants:
        """Those of a comparison that lose ``most`` nats a token, or less.

        ``model`` is the folder of what is served otherwise: the one that was compared, or one of
        its variants; ``cpu`` is this machine's. Raises ConfigError where the file is no comparison
        or of another model, where a checkpoint is not there any more, and where none loses so
        little.
        """
        document = _read(path)
        folders = {
            str((path.parent / each.folder).resolve()): each
            for each in document.variants
            if each.folder is not None
        }
        if not folders:
            raise ConfigError(f"{path} has no variants; make some: penstock quantize --compare")
        for folder in folders:
            if not Path(folder).is_dir():
                raise ConfigError(
                    f"{path}: the checkpoint {folder} is not there any more; make it again "
                    "(penstock quantize --compare)"
                )
        if str(model.resolve()) not in folders:
            _require_of(model, Path(next(iter(folders))), path)
        ordered = sorted(folders.items(), key=lambda each: (-each[1].num_bytes, each[1].name))
        found = {folder: each for folder, each in ordered if each.kl_mean <= most}
        others = tuple(each for _, each in ordered if each.kl_mean > most)
        if not found:
            least = min(others, key=lambda each: each.kl_mean)
            raise ConfigError(
                f"--max-loss {most:g}: every variant loses more; least {least.name}, with "
                f"{least.kl_mean:.4f} nats a token"
            )
        judged = f"{document.windows} windows of {document.window} tokens"
        speeds: dict[str, float] = {}
        if document.cpu == cpu:
            speeds = {folder: each.decode_tokens_per_s for folder, each in folders.items()}
            base = next((each for each in document.variants if each.folder is None), None)
            if base is not None:
                speeds.setdefault(str(model.resolve()), base.decode_tokens_per_s)
        return cls(found, others, judged, speeds)

    def name(self, model: str) -> str:
        """What a checkpoint is called."""
        known = self.found.get(model)
        return "as it is" if known is None else known.name

    def gained_s(self, model: str, base: str) -> float | None:
        """Seconds by which a step of one token is shorter with ``model`` than with ``base``; None
        where the comparison has not timed both here."""
        pair = [self.tokens_per_s.get(str(Path(each).resolve()), 0.0) for each in (base, model)]
        return 1 / pair[0] - 1 / pair[1] if all(speed > 0 for speed in pair) else None

    def note(self, model: str) -> str | None:
        """What is to be known of a checkpoint that is served in the place of the model; None of
        the model itself."""
        known = self.found.get(model)
        if known is None:
            return None
        return (
            f"the model is {known.name}, in {model}, {known.kl_mean:.4f} nats a token from the "
            f"model as it is, as {self.judged} told; other texts may lose more (penstock eval kl)"
        )


def _read(path: Path) -> Comparison:
    try:
        document = msgspec.json.decode(path.read_bytes(), type=Comparison)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"--variants {path} is no comparison ({error}); penstock quantize --compare makes one, "
            "comparison.json"
        ) from None
    except OSError as error:
        raise ConfigError(f"--variants {path}: {error.strerror}") from error
    if document.comparison != KIND:
        raise ConfigError(
            f"--variants {path} is a comparison of {document.comparison}, not of {KIND}"
        )
    return document


def _require_of(model: Path, variant: Path, path: Path) -> None:
    """Raise ConfigError unless a variant was made of the weights of ``model``."""
    if not model.is_dir():
        raise ConfigError(
            f"--variants {path}: MODEL must be the folder of the model that was compared"
        )
    files = [f"{each.name}: {each.bytes} bytes, {each.digest}" for each in weight_files(model)]
    record = read_json_object(variant / RECORD, ConfigError)
    if record.get("source") != files:
        raise ConfigError(
            f"--variants {path} is of another model than {model}: its weights are others; name the "
            "model that was compared"
        )


@dataclass(frozen=True)
class Guess:
    """A calibration that was not measured, and what it was made of, in words."""

    calibration: Calibration
    words: str


def guessed(
    wanted: Planned, known: Planned, calibrations: Sequence[Calibration], gained_s: float | None
) -> Guess | None:
    """Steps of a model in other forms of weights than one that was calibrated; None where ``known``
    was not calibrated, or is otherwise another model.

    Each step becomes shorter by what one of a single token does: ``gained_s``, where that was
    timed; else the part of the shortest step that the bytes of weights have become fewer by. Steps
    that wait for arithmetic may gain less, or lose.
    """
    key = wanted.key
    for each in calibrations:
        alike = msgspec.structs.replace(each.key, weights=key.weights) == key
        if each.key != known.key or not alike:
            continue
        first = each.steps.rows[0]
        if gained_s is not None and gained_s < first:
            words = "less what the comparison has timed that one stream gains"
            less = gained_s
        else:
            words = "scaled with the bytes of weights"
            less = first * (
                1 - read_bytes(wanted.engine_plan.plan) / read_bytes(known.engine_plan.plan)
            )
        rows = tuple(seconds - less for seconds in each.steps.rows)
        steps = msgspec.structs.replace(each.steps, rows=rows)
        return Guess(msgspec.structs.replace(each, key=key, steps=steps), words)
    return None
