"""Reads the rotary embedding out of a configuration, in transformers' v4 and v5 styles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from penstock.models.limits import MAX_POSITIONS, MAX_THETA
from penstock.models.reader import ConfigReader
from penstock.models.rope import is_computable
from penstock.models.rope_kinds import read_kind
from penstock.models.rope_spec import RopeKind, RopeSpec

DEFAULT_THETA = 10_000.0
"""What every transformers version assumes where the configuration names none."""

_PARTIAL: Final = "partial_rotary_factor"
_ALIASES: Final = {"su": "longrope"}


@dataclass(frozen=True)
class RopeFields:
    """How a family names its rotary embedding outside ``rope_parameters``, and what it assumes."""

    theta: str = "rope_theta"
    default_theta: float = DEFAULT_THETA
    partial: str = _PARTIAL
    default_partial: float | None = None
    """The part of a head that rotates where none is named; None: always the whole head."""
    kinds: tuple[RopeKind, ...] = ("default", "linear", "dynamic", "llama3", "yarn")
    """The kinds that the family has."""
    idle: tuple[str, ...] = ()
    """Parameters that change nothing in text."""


LLAMA_FIELDS: Final = RopeFields()


def read_rope(
    config: ConfigReader,
    head_dim: int,
    max_positions: int,
    fields: RopeFields = LLAMA_FIELDS,
    original: int | None = None,
) -> RopeSpec:
    """The rotary embedding of all layers.

    ``original`` is the number of positions that the model was first trained with, where the
    configuration names it outside the parameters.

    v5 writes one object, ``rope_parameters``; v4 wrote ``rope_theta`` and, with scaling,
    ``rope_scaling``. Raises :class:`~penstock.errors.ModelError` for kinds that Penstock does not
    compute, for contradictions between the styles, and for keys that the kind does not have.
    """
    theta, part = _theta(config, fields.theta), _part(config, fields.partial, fields)
    rope = rope_section(config)
    if rope is None:
        return RopeSpec(
            theta=theta or fields.default_theta,
            dim=_dim(config, fields.partial, head_dim, part, fields),
        )
    return read_parameters(
        rope, head_dim, max_positions, fields, theta=theta, part=part, original=original
    )


def read_own_rope(
    config: ConfigReader,
    head_dim: int,
    max_positions: int,
    fields: RopeFields,
    own: Mapping[str, object],
) -> RopeSpec:
    """The rotary embedding of a family that has parameters of its ``own``, which hold where the
    configuration has none. A base outside counts for nothing then, so that another is refused."""
    if rope_section(config) is not None:
        return read_rope(config, head_dim, max_positions, fields)
    theta = own[fields.theta]
    config.only(
        fields.theta, theta, f"must be {theta}, or stand in rope_parameters with all others"
    )
    parameters = ConfigReader(own, f"{config.where}: rope_parameters")
    return read_parameters(parameters, head_dim, max_positions, fields)


def rope_section(config: ConfigReader) -> ConfigReader | None:
    """``rope_parameters`` or ``rope_scaling``; None where neither is there, both are refused."""
    new, old = config.section("rope_parameters"), config.section("rope_scaling")
    if new is not None and old is not None:
        raise config.error("rope_scaling", "stands beside rope_parameters; keep only one of them")
    return new or old


def read_ropes(
    config: ConfigReader, head_dim: int, max_positions: int, fields: Mapping[str, RopeFields]
) -> dict[str, RopeSpec] | None:
    """The rotary embedding of each kind of layer, where ``rope_parameters`` has one for each.

    A kind that it lacks has the default of its ``fields``. None where there is no
    ``rope_parameters``; fields of v4 beside it are refused.
    """
    section = config.section("rope_parameters")
    if section is None:
        return None
    for name in ("rope_scaling", *(each.theta for each in fields.values())):
        config.only(name, None, "stands beside rope_parameters; keep only one of them")
    ropes = {}
    for kind, each in fields.items():
        inner = section.section(kind)
        if inner is None:
            ropes[kind] = RopeSpec(theta=each.default_theta, dim=head_dim)
        else:
            refuse_truncate(inner)
            ropes[kind] = read_parameters(inner, head_dim, max_positions, each)
    section.finish()
    return ropes


def refuse_truncate(rope: ConfigReader) -> None:
    """Raise ModelError where the parameters of one kind of layer have YaRN's ``truncate``."""
    why = "must be true: transformers passes it over in parameters of one kind of layer"
    rope.only("truncate", True, why)


def read_parameters(
    rope: ConfigReader,
    head_dim: int,
    max_positions: int,
    fields: RopeFields = LLAMA_FIELDS,
    *,
    theta: float | None = None,
    part: float | None = None,
    original: int | None = None,
) -> RopeSpec:
    """The rotary embedding in an object of parameters, which is finished.

    ``theta``, ``part`` and ``original`` are what the configuration says outside it, None where
    nothing.
    """
    kind = _kind(rope, fields.kinds)
    for name in fields.idle:
        rope.raw(name)
    # A proportion of the frequencies, then, of a rotation of the whole head.
    proportion = rope.number(_PARTIAL, 1.0, high=1.0) if kind == "proportional" else None
    inner_part = _part(rope, _PARTIAL, fields) if proportion is None else None
    theta = _one_theta(rope, theta, fields)
    if part is not None and inner_part is not None and part != inner_part:
        raise rope.error(_PARTIAL, f"contradicts {fields.partial} {part:g} outside")
    theta = theta or fields.default_theta
    dim = _dim(rope, _PARTIAL, head_dim, part or inner_part, fields)
    spec = read_kind(rope, kind, theta, dim, max_positions, original)
    if proportion is not None:
        spec = replace(spec, rotating=int(proportion * dim // 2))
    rope.finish()
    positions = extended_positions(spec, max_positions)
    if positions > MAX_POSITIONS:
        raise rope.error(
            "factor",
            f"makes {positions} positions of {spec.original_max_positions}, and a model may have "
            f"{MAX_POSITIONS}",
        )
    if not is_computable(spec, positions):
        raise rope.error("factor", f"and theta {spec.theta:g} give rotations that are no numbers")
    return spec


def read_theta(
    config: ConfigReader, rope: ConfigReader, fields: RopeFields = LLAMA_FIELDS
) -> float | None:
    """The base of the frequencies, which may be in the object of parameters ``rope`` or outside;
    None where it is in neither."""
    return _one_theta(rope, _theta(config, fields.theta), fields)


def _one_theta(rope: ConfigReader, outside: float | None, fields: RopeFields) -> float | None:
    inside = _theta(rope, "rope_theta")
    if outside is not None and inside is not None and outside != inside:
        raise rope.error("rope_theta", f"contradicts {fields.theta} {outside:g} outside")
    return outside or inside


def _theta(config: ConfigReader, name: str) -> float | None:
    config.raw(name)
    return config.number(name, above=1.0, high=MAX_THETA) if config.has(name) else None


def _part(config: ConfigReader, name: str, fields: RopeFields) -> float | None:
    """The part of a head that rotates; None where nothing is said."""
    if fields.default_partial is None:
        why = "must be 1: heads that rotate only in part are not supported for this architecture"
        config.only(name, 1, why)
        return None
    config.raw(name)
    return config.number(name, high=1.0) if config.has(name) else None


def _dim(
    config: ConfigReader, name: str, head_dim: int, part: float | None, fields: RopeFields
) -> int:
    """The number of components that rotate."""
    dim = int(head_dim * (part or fields.default_partial or 1.0))
    if dim < 2 or dim % 2:
        raise config.error(
            name, f"lets {dim} of a head's {head_dim} components rotate, and they rotate in pairs"
        )
    return dim


def extended_positions(rope: RopeSpec, max_positions: int) -> int:
    """Positions the model can serve: ``max_position_embeddings`` or what scaling makes of it.

    YaRN configurations leave ``max_position_embeddings`` at either length; dynamic NTK always at
    the original one. Linear scaling does not say which it is, and is taken at its word.
    """
    if rope.kind in ("yarn", "dynamic"):
        return max(max_positions, int(rope.original_max_positions * rope.factor))
    return max_positions


def _kind(rope: ConfigReader, kinds: tuple[RopeKind, ...]) -> RopeKind:
    name = rope.text("rope_type" if rope.has("rope_type") else "type", "default")
    rope.raw("rope_type"), rope.raw("type")
    if rope.has("type") and rope.text("type") != name:
        raise rope.error("type", f"contradicts rope_type {name!r}")
    name = _ALIASES.get(name, name)
    if name not in kinds:
        key = "rope_type" if rope.has("rope_type") else "type"
        raise rope.error(key, f"is not supported; supported are {', '.join(kinds)}")
    return name
