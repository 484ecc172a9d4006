"""What is searched: the options, and the values that each may have."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgspec

from penstock.cache.geometry import BLOCK_SIZE
from penstock.config import EngineConfig
from penstock.errors import ConfigError
from penstock.profile import ProfileOptions
from penstock.resolved_config import ResolvedConfig
from penstock.tune.variants import Variants

LIMITS: Final[Mapping[str, tuple[int, ...]]] = {
    "max_num_seqs": (2, 4, 8, 16, 32, 64, 128, 256),
    "max_num_batched_tokens": (32, 64, 128, 256, 512, 1024, 2048),
    "max_waiting": (0, 2, 4, 8, 16, 32, 64, 128, 256, 1024),
}
"""Limits that change no answer."""
WEIGHTS: Final = ("none", "int8", "int4")
"""Values of ``quantization``, the most exact first."""
KV: Final = ("auto", "int8", "fp8", "k8v4", "int4")
"""Values of ``kv_cache_dtype``, the most exact first."""
_KV_MORE: Final = (1.5, 2, 4, 8)
"""So many times the memory of the KV cache that is decided otherwise."""
_KV_ROOM: Final = 0.8
"""The part of the free memory that a larger KV cache may take."""
OPTIONS: Final = (*LIMITS, "kv_cache_bytes", "quantization", "kv_cache_dtype")
"""All options that are searched, besides the model, where there are variants of it."""


@dataclass(frozen=True)
class Candidate:
    """One configuration."""

    engine: EngineConfig
    max_waiting: int

    def get(self, option: str) -> Any:
        return self.max_waiting if option == "max_waiting" else getattr(self.engine, option)

    def having(self, option: str, value: Any) -> Candidate:
        """The same with another value of one option."""
        if option == "max_waiting":
            return replace(self, max_waiting=value)
        return replace(self, engine=msgspec.structs.replace(self.engine, **{option: value}))

    @property
    def possible(self) -> bool:
        """Whether its limits go together: a step has room for all sequences."""
        seqs, tokens = self.engine.max_num_seqs, self.engine.max_num_batched_tokens
        return seqs is None or tokens is None or tokens >= seqs

    def options(self, usual_waiting: int) -> ProfileOptions:
        """All that it sets; ``usual_waiting`` is the limit that a server has otherwise."""
        usual = EngineConfig()
        found = {
            name: value
            for name in ProfileOptions.__struct_fields__
            if name != "max_waiting"
            and (value := getattr(self.engine, name)) != getattr(usual, name)
        }
        if self.max_waiting != usual_waiting:
            found["max_waiting"] = self.max_waiting
        return ProfileOptions(**found)


@dataclass(frozen=True)
class Dimension:
    """An option and its values, in their order: neighbours are much alike."""

    option: str
    values: tuple[Any, ...]


@dataclass(frozen=True)
class Space:
    """All candidates: any value of each dimension. ``default`` is one of them."""

    default: Candidate
    dimensions: tuple[Dimension, ...]
    variants: Variants = field(default_factory=Variants)
    """Checkpoints that may be served in the place of the default's."""

    @classmethod
    def of(
        cls,
        default: Candidate,
        resolved: ResolvedConfig,
        free_bytes: int,
        allowed: Collection[str] = (),
        kept: Collection[str] = (),
        shared: bool = False,
        variants: Variants | None = None,
    ) -> Space:
        """The space around ``default``, which amounts to ``resolved`` here.

        ``allowed`` are less exact types than the default's that may be taken (``int8``,
        ``kv:int8``), ``kept`` options that stay as they are. ``free_bytes``: of memory, beside the
        weights; ``shared``: whether prompts share beginnings, of which a larger cache would find
        more. ``variants`` are checkpoints that may be served as well, whose weights stay in the
        types that they have. A value that the default leaves open is in the place of what is
        decided for it.
        """
        found = []
        for option, values in LIMITS.items():
            usual = default.max_waiting if option == "max_waiting" else getattr(resolved, option)
            found.append(Dimension(option, _around(values, usual, default.get(option))))
        held = resolved.num_blocks * BLOCK_SIZE
        short = held < resolved.max_num_seqs * resolved.max_model_len
        room = int(free_bytes * _KV_ROOM) if shared or short else 0
        found.append(Dimension("kv_cache_bytes", _caches(default, resolved, room)))
        for option, names, prefix in (
            ("quantization", WEIGHTS, ""),
            ("kv_cache_dtype", KV, "kv:"),
        ):
            own = default.get(option)
            exact = names[: names.index(own)] if own in names else ()
            less = [name for name in names if prefix + name in allowed and name != own]
            found.append(Dimension(option, tuple(dict.fromkeys((*exact, own, *less)))))
        if variants is not None:
            own = default.engine.model
            others = [model for model in variants.found if model != own]
            # Their losses were measured with weights as they are: these are not rounded again.
            found = [each for each in found if each.option != "quantization"]
            found.append(Dimension("model", (own, *others)))
        return cls(
            default,
            tuple(each for each in found if each.option not in kept and len(each.values) > 1),
            variants or Variants(),
        )

    @property
    def size(self) -> int:
        """How many candidates there are."""
        total = 1
        for each in self.dimensions:
            total *= len(each.values)
        return total

    def changed(self, candidate: Candidate) -> tuple[str, ...]:
        """The options that it has otherwise than the default."""
        return tuple(
            each.option
            for each in self.dimensions
            if candidate.get(each.option) != self.default.get(each.option)
        )

    def named(self, candidate: Candidate) -> str:
        """What it is called: its changes."""
        told = (self._said(option, candidate.get(option)) for option in self.changed(candidate))
        return ",".join(told) or "default"

    def _said(self, option: str, value: object) -> str:
        if option == "model":
            return f"variant={self.variants.name(str(value))}"
        return f"{option}={value}"

    def neighbours(self, candidate: Candidate, dimension: Dimension) -> Sequence[Candidate]:
        """Those with the values of one option that are next to its own."""
        place = dimension.values.index(candidate.get(dimension.option))
        several = [
            candidate.having(dimension.option, dimension.values[at])
            for at in (place - 1, place + 1)
            if 0 <= at < len(dimension.values)
        ]
        return [each for each in several if each.possible]


def check_names(allowed: Collection[str], kept: Collection[str]) -> None:
    """Raise ConfigError for names that are none, with the nearest."""
    types = (*WEIGHTS[1:], *(f"kv:{name}" for name in KV[1:]))
    for option, given, known in (("--allow", allowed, types), ("--keep", kept, OPTIONS)):
        for name in given:
            if name not in known:
                raise ConfigError(f"{option} {name}: it is one of {', '.join(known)}")


def _around(values: tuple[int, ...], usual: int, own: int | None) -> tuple[int | None, ...]:
    """``values`` with what is ``usual`` among them, written as the default has it."""
    return tuple(own if each == usual else each for each in sorted({*values, usual}))


def _caches(default: Candidate, resolved: ResolvedConfig, room: int) -> tuple[int | None, ...]:
    """The cache's memory, and more within ``room`` bytes."""
    own, usual = default.engine.kv_cache_bytes, resolved.kv_cache_bytes
    more = (int(usual * times) for times in _KV_MORE)
    return (own, *(each for each in more if each <= room))
