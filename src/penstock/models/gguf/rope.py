"""The rotary embedding of a GGUF file, as the fields of a configuration."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from penstock.errors import ModelError
from penstock.gguf.writing import NewValue
from penstock.models.gguf.keys import Keys
from penstock.models.spec import AttentionSpec, ModelSpec, RopeSpec

FACTORS: Final = "rope_freqs.weight"
LONG, SHORT = "rope_factors_long.weight", "rope_factors_short.weight"
_LLAMA3: Final = (1.0, 4.0, 8192)
"""What all published models have of the kind ``llama3``: both factors of frequencies, and the
original number of positions. Files hold the divisors alone that follow from these."""
_LEAST: Final = 1e-3
"""No model speeds rotations up by more than a little."""
_CLOSE: Final = 1e-5
_STILL: Final = 1e20
"""What is divided by more than that does not rotate."""
_TENTHS: Final = frozenset({"deepseek2"})
"""Architectures whose files have a tenth of YaRN's weight of all dimensions, and no other."""

Floats = Callable[[str], tuple[float, ...] | None]
"""Returns the values of a small tensor; None where the file does not have it."""


@dataclass(frozen=True)
class RopeScaling:
    """How frequencies are scaled."""

    parameters: dict[str, object] | None
    """``rope_scaling`` of a configuration; None: they are not, as far as it can say so."""
    divisors: tuple[float, ...] = ()
    """What each frequency is divided by, where no kind of scaling says so."""

    def applied(self, spec: ModelSpec) -> ModelSpec:
        """The model with its frequencies divided."""
        if not self.divisors:
            return spec

        def divided(mixer: AttentionSpec) -> AttentionSpec:
            if mixer.rope is None:
                return mixer
            rope = replace(
                mixer.rope,
                kind="longrope",
                original_max_positions=spec.max_positions,
                short_factors=self.divisors,
                long_factors=self.divisors,
            )
            return replace(mixer, rope=rope)

        layers = tuple(
            replace(layer, mixer=divided(layer.mixer))
            if isinstance(layer.mixer, AttentionSpec)
            else layer
            for layer in spec.layers
        )
        return replace(spec, layers=layers)


def read_scaling(keys: Keys, theta: float, dim: int, floats: Floats) -> RopeScaling:
    """Read how frequencies are scaled, of a base and so many components of a head that rotate.

    Raises ModelError for kinds that are not known.
    """
    kind = keys.raw("rope.scaling.type") or "none"
    factor = keys.number("rope.scaling.factor", keys.number("rope.scale_linear", 1.0))
    original = keys.raw("rope.scaling.original_context_length")
    attention = keys.raw("rope.scaling.attn_factor")
    keys.raw("rope.scaling.finetuned")
    yarn = {
        name: keys.raw(f"rope.scaling.yarn_{key}")
        for name, key in (
            ("beta_fast", "beta_fast"),
            ("beta_slow", "beta_slow"),
            ("attention_factor", "attn_factor"),
        )
    }
    extrapolation = keys.number("rope.scaling.yarn_ext_factor", 1.0)
    weight = keys.raw("rope.scaling.yarn_log_multiplier")
    divisors, long, short = (_checked(keys, name, floats(name)) for name in (FACTORS, LONG, SHORT))
    if long is not None and short is not None:
        return RopeScaling(_longrope(long, short, original, attention))
    if divisors is not None and any(each != 1.0 for each in divisors):
        if len(divisors) != dim // 2:
            raise keys.error(
                "rope.dimension_count",
                f"asks for {dim // 2} frequencies, and {FACTORS} has {len(divisors)}",
            )
        rotating = sum(each == 1.0 for each in divisors)
        if all(each == 1.0 or each > _STILL for each in divisors):
            part = rotating / len(divisors)
            return RopeScaling({"rope_type": "proportional", "partial_rotary_factor": part})
        llama3 = _llama3(theta, dim, divisors)
        return RopeScaling(None, divisors) if llama3 is None else RopeScaling(llama3)
    if kind == "linear" and factor != 1.0:
        return RopeScaling({"rope_type": "linear", "factor": factor})
    if kind == "yarn":
        if extrapolation not in (1.0, -1.0):
            raise keys.error("rope.scaling.yarn_ext_factor", "must be 1: others are not supported")
        scaling: dict[str, object] = {"rope_type": "yarn", "factor": factor}
        scaling["original_max_position_embeddings"] = original
        if isinstance(weight, float | int) and weight:
            if keys.architecture in _TENTHS:
                scaling["mscale"] = scaling["mscale_all_dim"] = round(10.0 * weight, 6)
            else:
                scaling |= {"mscale": 1.0, "mscale_all_dim": weight}
        scaling |= {name: value for name, value in yarn.items() if value is not None}
        return RopeScaling({name: each for name, each in scaling.items() if each is not None})
    if kind not in ("none", "linear", "longrope"):
        raise keys.error("rope.scaling.type", "is not supported; supported are linear and yarn")
    return RopeScaling(None)


def _checked(keys: Keys, name: str, values: tuple[float, ...] | None) -> tuple[float, ...] | None:
    """``values``; raises ModelError where no frequency can be divided by one of them."""
    bad = [each for each in values or () if not _LEAST <= each < math.inf]
    if bad:
        raise ModelError(
            f"{keys.where}: {name} has {bad[0]:g}, and frequencies are divided by finite numbers "
            f"from {_LEAST:g} on; download the file again"
        )
    return values


def _longrope(
    long: tuple[float, ...], short: tuple[float, ...], original: object, attention: object
) -> dict[str, object]:
    scaling: dict[str, object] = {
        "rope_type": "longrope",
        "long_factor": list(long),
        "short_factor": list(short),
        "original_max_position_embeddings": original,
        "attention_factor": attention,
    }
    return {name: each for name, each in scaling.items() if each is not None}


def _llama3(theta: float, dim: int, divisors: tuple[float, ...]) -> dict[str, object] | None:
    """The parameters of Llama 3 that these divisors follow from; None if they do not."""
    low, high, original = _LLAMA3
    factor = round(max(divisors), 4)
    for index, divisor in enumerate(divisors):
        turns = original * theta ** (-2 * index / dim) / (2 * math.pi)
        smooth = min(max((turns - low) / (high - low), 0.0), 1.0)
        if abs(divisor * ((1 - smooth) / factor + smooth) - 1.0) > _CLOSE:
            return None
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": original,
    }


@dataclass(frozen=True)
class WrittenScaling:
    """How frequencies are scaled, as files say it."""

    keys: Mapping[str, NewValue] = field(default_factory=dict)
    """Keys, without the name of the architecture before them."""
    vectors: Mapping[str, tuple[float, ...]] = field(default_factory=dict)


def written_scaling(rope: RopeSpec | None) -> WrittenScaling:
    """The other direction of :func:`read_scaling`; nothing for a kind that files cannot say, which
    reading it again will show."""
    if rope is None:
        return WrittenScaling()
    original = rope.original_max_positions
    match rope.kind:
        case "linear":
            return WrittenScaling(
                {"rope.scaling.type": "linear", "rope.scaling.factor": float(rope.factor)}
            )
        case "yarn":
            return WrittenScaling(
                {
                    "rope.scaling.type": "yarn",
                    "rope.scaling.factor": float(rope.factor),
                    "rope.scaling.original_context_length": original,
                    "rope.scaling.yarn_beta_fast": float(rope.beta_fast),
                    "rope.scaling.yarn_beta_slow": float(rope.beta_slow),
                }
            )
        case "llama3":
            return WrittenScaling(vectors={FACTORS: _divisors(rope)})
        case "longrope":
            return WrittenScaling(
                {
                    "rope.scaling.original_context_length": original,
                    "rope.scaling.attn_factor": float(rope.attention_factor),
                },
                {LONG: rope.long_factors, SHORT: rope.short_factors},
            )
    return WrittenScaling()


def shortest_decimals(values: NDArray[np.float32]) -> tuple[float, ...]:
    """The shortest decimals that float32 rounds to ``values``: those that ``config.json`` has, so
    that a model has one spec, whichever of both it is read from."""
    return tuple(float(str(each)) for each in values)


def _divisors(rope: RopeSpec) -> tuple[float, ...]:
    """What each frequency of Llama 3 is divided by."""
    turns = (
        rope.original_max_positions
        * float(rope.theta) ** (-np.arange(0, rope.dim, 2) / rope.dim)
        / (2 * math.pi)
    )
    low, high = rope.low_freq_factor, rope.high_freq_factor
    smooth = np.clip((turns - low) / (high - low), 0.0, 1.0)
    divisors = (1 / ((1 - smooth) / rope.factor + smooth)).astype(np.float32)
    return shortest_decimals(divisors)
