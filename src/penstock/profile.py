"""Profiles: the options that ``penstock tune`` has found for a model, a machine and a load.

A profile is a JSON file, and part of an :class:`~penstock.config.EngineConfig` that was made with
it. Whoever reads options (the command line, Python's keywords) takes those of the profile where
nothing was given; the resolver says which they were, and what the profile was made for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from penstock.dtypes import DTypeOption, KvCacheDTypeOption, QuantizationName
from penstock.errors import ConfigError

ObjectiveName = Literal["goodput", "throughput", "ttft", "e2el"]
"""What a profile is to be best at."""

VERSION: Final = 1
"""The version of profiles."""
MOST_BYTES: Final = 1 << 20
"""The longest document that is taken for one: a thousand times what they have."""
MOST: Final = (1 << 63) - 1
"""The largest number: JSON has no bound, and messages to the engine's process have this one."""
Int64 = Annotated[int, msgspec.Meta(ge=-MOST, le=MOST)]
_SERVERS: Final = ("max_waiting",)
"""Options of ``penstock serve`` that are none of the engine's."""


class ProfileOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options that a profile sets, named and typed as the engine's; ``max_waiting`` is the
    server's. What is left out is decided as without a profile."""

    dtype: DTypeOption | UnsetType = UNSET
    quantization: QuantizationName | UnsetType = UNSET
    quantization_group: Int64 | UnsetType | None = UNSET
    quantization_zero_points: bool | UnsetType = UNSET
    quantize_activations: bool | UnsetType | None = UNSET
    quantize_head: bool | UnsetType = UNSET
    quantization_calibration: bool | UnsetType = UNSET
    threads: Int64 | str | UnsetType | None = UNSET
    max_model_len: Int64 | UnsetType | None = UNSET
    max_input_len: Int64 | UnsetType | None = UNSET
    max_output_len: Int64 | UnsetType | None = UNSET
    kv_cache_bytes: Int64 | UnsetType | None = UNSET
    kv_cache_dtype: KvCacheDTypeOption | UnsetType = UNSET
    max_num_seqs: Int64 | UnsetType | None = UNSET
    max_num_batched_tokens: Int64 | UnsetType | None = UNSET
    enable_prefix_caching: bool | UnsetType = UNSET
    max_waiting: Annotated[int, msgspec.Meta(ge=0, le=MOST)] | UnsetType = UNSET

    def set(self) -> dict[str, object]:
        """All that are set, by their names."""
        values = {name: getattr(self, name) for name in self.__struct_fields__}
        return {name: value for name, value in values.items() if value is not UNSET}

    def engine(self) -> dict[str, object]:
        """Those of the engine that are set."""
        return {name: value for name, value in self.set().items() if name not in _SERVERS}

    def __str__(self) -> str:
        return ", ".join(f"{name} {option_text(value)}" for name, value in self.set().items())


class MadeForModel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The model that was tuned. Others of its shape run at the same speed, whatever they know."""

    name: str
    """As it was given."""
    architecture: str
    parameters: Int64


class MadeForMachine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The machine on which it was."""

    cpu_model: str
    backend: str
    threads: Int64


class Lengths(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Tokens of a load's prompts, or of its answers."""

    mean: float
    p50: float
    p90: float
    p99: float
    longest: Int64


class Workload(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A load in figures."""

    source: str
    """Name of the trace."""
    requests: Int64
    per_s: float | None
    """Requests a second; None where so many are open at all times, or all come at once."""
    concurrency: Int64 | None
    """The most that were open at once; None without a bound."""
    input_tokens: Lengths
    output_tokens: Lengths
    shared: float
    """The part of the prompt tokens that an earlier prompt had at the same place."""

    def __str__(self) -> str:
        rate = "" if self.per_s is None else f" at {self.per_s:.3g}/s"
        bound = "" if self.concurrency is None else f", {self.concurrency} at once"
        return (
            f"{self.requests:,} requests{rate}{bound}, prompts of {self.input_tokens.p50:,.0f} "
            f"tokens and answers of {self.output_tokens.p50:,.0f} (medians)"
        )


class MadeFor(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a profile was made for."""

    model: MadeForModel
    machine: MadeForMachine
    workload: Workload


class Figure(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A figure of one simulation, or the mean of several runs with its interval of 95 %."""

    mean: float
    low: float | None = None
    high: float | None = None

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return f"{self.mean:.3g}"
        return f"{self.mean:.3g} ({self.low:.3g} to {self.high:.3g})"


class Served(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a load was served. Times are seconds; None where nothing was, or without an SLO."""

    goodput_per_s: Figure | None
    """Answers within the SLO, a second."""
    good_share: Figure | None
    failed_share: Figure
    """The part of the requests that was refused, or failed."""
    output_tokens_per_s: Figure
    ttft_p99: Figure | None
    tpot_p99: Figure | None
    e2el_p99: Figure | None

    @property
    def brief(self) -> str:
        """Its main figure."""
        if self.goodput_per_s is not None:
            return f"{self.goodput_per_s} good answers/s"
        return f"{self.output_tokens_per_s} tokens/s"


class Tried(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A configuration beside its figures: by simulation, and where it was run."""

    predicted: Served | None
    measured: Served | None


class Profile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The document that ``penstock tune`` writes."""

    version: Int64
    penstock: str
    """The version that made it."""
    made: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
    """When, in UTC as ISO 8601 writes it. Logs and states call a profile by it."""
    options: ProfileOptions
    made_for: MadeFor
    slo: tuple[str, ...]
    objective: ObjectiveName
    verified: bool
    """Whether it was measured beside the default, and chosen by that."""
    chosen: Tried
    default: Tried
    configurations: Int64
    """How many were simulated."""
    seed: Int64
    notes: tuple[str, ...] = ()

    @classmethod
    def read(cls, path: Path) -> Profile:
        """Raises ConfigError where the file is no profile of this version, and OSError."""
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise ConfigError(f"{path} is no profile: it has over {MOST_BYTES:,} bytes")
        return cls.decoded(data, str(path))

    @classmethod
    def decoded(cls, data: bytes, name: str) -> Profile:
        """The profile that JSON spells. Raises ConfigError, which calls it ``name``, where it is
        none of this version."""
        try:
            version = msgspec.json.decode(data, type=_Versioned).version
            if version != VERSION:
                raise ConfigError(
                    f"{name} is a profile of version {version}, and this Penstock reads {VERSION}; "
                    "make it anew: penstock tune MODEL --trace FILE --slo LIMIT"
                )
            return msgspec.json.decode(data, type=cls)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ConfigError(
                f"{name} is no profile: {error}{_nearest(str(error))}; penstock tune makes one"
            ) from None

    def check_model(self, architecture: str, parameters: int) -> None:
        """Raise ConfigError for another model than it was made for: limits that were found for one
        say nothing of another."""
        model = self.made_for.model
        if (model.architecture, model.parameters) != (architecture, parameters):
            raise ConfigError(
                f"the profile was made for {model.name}, {model.architecture} with "
                f"{model.parameters:,} parameters, and this model is {architecture} with "
                f"{parameters:,}; leave the profile out, or make one for it (penstock tune)"
            )

    def over(self, given: Mapping[str, object]) -> dict[str, object]:
        """The engine's options: those that were ``given``, and this profile's for others."""
        return {**self.options.engine(), **given}

    def overruled(self, asked: Mapping[str, object]) -> list[str]:
        """What there is to say of the engine's options in whose place others are ``asked`` for."""
        return [
            f"{name} is {option_text(asked[name])}, as asked, in the place of the profile's "
            f"{option_text(value)}, with which it was tuned"
            for name, value in self.options.engine().items()
            if asked[name] != value
        ]

    @property
    def max_waiting(self) -> int | None:
        """The server's limit; None where it sets none."""
        value = self.options.max_waiting
        return value if isinstance(value, int) else None

    @property
    def promise(self) -> str:
        """What it is said to bring, beside the default."""
        pairs = (
            ("measured", self.chosen.measured, self.default.measured),
            ("predicted, not measured", self.chosen.predicted, self.default.predicted),
        )
        for how, chosen, default in pairs:
            if chosen is not None and default is not None:
                return f"{how}: {chosen.brief}, the default {default.brief}"
        return "never simulated to its end"

    @property
    def told(self) -> str:
        """What it was made for."""
        return f"made for {self.made_for.workload}{self._within}"

    @property
    def briefly(self) -> str:
        """What it was made for, in a few words."""
        load = self.made_for.workload
        rate = load.source if load.per_s is None else f"{load.per_s:.3g} requests/s"
        return f"made for {rate}{self._within}"

    @property
    def _within(self) -> str:
        return f" within {' '.join(self.slo)}" if self.slo else ""


class _Versioned(msgspec.Struct):
    version: Int64


def _nearest(message: str) -> str:
    """A hint for a key that is misspelled."""
    found = re.search(r"unknown field `([^`]*)`", message)
    if found is None:
        return ""
    import difflib  # only now: every start of an engine reads options

    kinds = (ProfileOptions, MadeForModel, MadeForMachine, Lengths, Workload, MadeFor)
    rest = (Figure, Served, Tried, Profile)
    known = [name for kind in (*kinds, *rest) for name in kind.__struct_fields__]
    near = difflib.get_close_matches(found[1], known, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def option_text(value: object) -> str:
    """An option's value as people read it."""
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
