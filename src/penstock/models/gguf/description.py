"""What a GGUF file is to say of a model: the inverse of ``config.py``, by the same table.

A description is checked by reading it: the model that Penstock finds in it must be the one that is
written, in everything that changes what it computes. So whatever a format, or this module, has no
words for is refused, and no key needs a rule of its own for that.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from penstock.errors import ModelError
from penstock.gguf.arrays import Numbers
from penstock.gguf.metadata import GgufValue
from penstock.gguf.writing import NewValue
from penstock.interface.sources import Shape
from penstock.models.gguf.architecture import COMMON, Architecture
from penstock.models.gguf.architectures import ARCHITECTURES
from penstock.models.gguf.config import EXPERTS, SAMPLING, GgufTensors, read_gguf_spec
from penstock.models.gguf.names import GENERAL
from penstock.models.gguf.places import WrittenTensor, written_tensors
from penstock.models.gguf.rope import written_scaling
from penstock.models.gguf.values import FIELDS, described_attention, first_experts, first_rope
from penstock.models.gguf.write_rules import WRITTEN, WriteRules
from penstock.models.names import NameMap
from penstock.models.spec import ModelSpec, attention_of

_WHERE: Final = "the GGUF file"
_APART: Final = frozenset(
    {
        *("names", "quantized", "notes", "architecture", "dtype"),
        *("bos_token_id", "eos_token_ids", "sampling_defaults"),
    }
)
"""Fields of a spec that say nothing about what a model computes. Its tokens are those of the
tokenizer, whose own part of a file says so."""


@dataclass(frozen=True)
class Description:
    """A model in the words of GGUF."""

    architecture: str
    """``general.architecture``"""
    model: ModelSpec
    """The model that the file will hold."""
    values: Mapping[str, NewValue]
    """Metadata by their whole keys."""
    vectors: Mapping[str, tuple[float, ...]]
    """Small tensors that belong to the configuration, in float32."""
    names: NameMap
    """The names of tensors."""
    notes: tuple[str, ...]
    """What the file cannot say, and what follows."""


def describe(spec: ModelSpec, where: str) -> Description:
    """The model in the words of GGUF.

    Raises ModelError, naming ``where``, for a model that no architecture of GGUF files is, or that
    Penstock does not write.
    """
    name = _architecture_name(spec, where)
    architecture = ARCHITECTURES[name]
    rules = WRITTEN[name]
    notes = []
    if rules.drops_windows:
        spec, dropped = _without_windows(spec)
        if dropped is not None:
            notes.append(
                f"files of {name} have no attention windows, and this model has one of {dropped} "
                f"tokens: texts longer than that come out otherwise"
            )
    prefix = name.removesuffix(EXPERTS)
    values: dict[str, NewValue] = {
        "general.architecture": prefix,
        "general.type": "model",
    }
    keys = _keys(spec, architecture, rules)
    scaling = written_scaling(first_rope(spec))
    values |= {f"{prefix}.{key}": value for key, value in {**keys, **scaling.keys}.items()}
    sampled = spec.sampling_defaults.sampled
    values |= {
        f"general.sampling.{SAMPLING[option]}": value
        for option, value in sampled.items()
        if option in SAMPLING
    }
    names = NameMap({**GENERAL, **architecture.names(spec), **rules.names})
    return Description(prefix, spec, values, scaling.vectors, names, tuple(notes))


def require_same(description: Description, shapes: Mapping[str, Shape], where: str) -> None:
    """Raise ModelError, naming ``where``, unless a file of this description, with tensors of these
    shapes, is read as the model that it is to hold."""

    def floats(name: str) -> tuple[float, ...] | None:
        return description.vectors.get(name)

    tensors = GgufTensors(shapes, dict.fromkeys(shapes, "F32"), floats)
    read: dict[str, GgufValue] = {}
    for key, value in description.values.items():
        if isinstance(value, np.ndarray):
            read[key] = Numbers(value)
        elif isinstance(value, float):
            read[key] = float(np.float32(value))
        else:
            assert isinstance(value, bool | int | str)
            read[key] = value
    try:
        found = read_gguf_spec(read, tensors, where=_WHERE)
    except ModelError as error:
        difference: str | None = str(error)
    else:
        difference = next(_differences(description.model, found, ""), None)
    if difference is not None:
        raise _inexpressible(description, difference, where)


def tensors_of(
    description: Description, shapes: Mapping[str, Shape], where: str
) -> tuple[WrittenTensor, ...]:
    """The tensors of the weights of these shapes, by canonical name. Raises ModelError, naming
    ``where``, for a weight that files have no tensor for."""
    try:
        return written_tensors(description.names, shapes)
    except ModelError as error:
        raise _inexpressible(description, str(error), where) from error


def _inexpressible(description: Description, difference: str, where: str) -> ModelError:
    family = description.model.architecture
    if _names_of(family):
        return ModelError(
            f"{where} cannot be written as a GGUF file of architecture {description.architecture}, "
            f"which has no words for all of it: {difference}"
        )
    return ModelError(f"{where}: {_unwritten(family)}, which it has not: {difference}")


def _architecture_name(spec: ModelSpec, where: str) -> str:
    """The architecture whose family it is; else Llama's, which many others are in all but name."""
    name = next(iter(_names_of(spec.architecture)), "llama")
    if name not in WRITTEN:
        raise ModelError(f"{where}: {_unwritten(spec.architecture)}")
    return name


def _names_of(family: str) -> list[str]:
    own = [name for name, each in ARCHITECTURES.items() if each.family == family]
    return own + [name for name, each in WRITTEN.items() if family in each.families]


def _unwritten(family: str) -> str:
    known = sorted(
        {
            each
            for name, rules in WRITTEN.items()
            for each in (ARCHITECTURES[name].family, *rules.families)
        }
    )
    return (
        f"{family} is not written to GGUF files; those that are: {', '.join(known)}, and others of "
        "Llama's shape"
    )


def _keys(spec: ModelSpec, architecture: Architecture, rules: WriteRules) -> dict[str, NewValue]:
    """The keys of the architecture, without its name before them."""
    values: dict[str, NewValue] = {}
    for name, key in {**COMMON, **architecture.fields}.items():
        if name in architecture.without:
            continue
        value = FIELDS[name](spec)
        if value is not None:
            assert isinstance(value, bool | int | float)
            values[key] = value
    attention, rope = described_attention(spec), first_rope(spec)
    values["vocab_size"] = spec.vocab_size
    if "head_dim" not in architecture.without:
        values["attention.value_length"] = attention.head_dim
    if rope is not None:
        values["rope.dimension_count"] = rope.dim
    experts = first_experts(spec)
    if experts is not None:
        values.setdefault("feed_forward_length", experts.intermediate_size)
    return values | dict(rules.keys(spec))


def _without_windows(spec: ModelSpec) -> tuple[ModelSpec, int | None]:
    """The model attending to all tokens, and the least window that it had, if that is less than
    the context."""
    least: int | None = None
    layers = []
    for layer in spec.layers:
        attention = attention_of(layer)
        if attention is None or layer.mixer is not attention or attention.window is None:
            layers.append(layer)
            continue
        if not isinstance(attention.window, int):
            return spec, None
        least = attention.window if least is None else min(least, attention.window)
        layers.append(replace(layer, mixer=replace(attention, window=None)))
    if least is not None and least >= spec.max_positions:
        least = None
    return replace(spec, layers=tuple(layers)), least


def _differences(wanted: object, found: object, where: str) -> Iterator[str]:
    """Where two specs differ, numbers being those of float32."""
    if dataclasses.is_dataclass(wanted) and type(wanted) is type(found):
        for field in dataclasses.fields(wanted):
            if where or field.name not in _APART:
                mine, other = getattr(wanted, field.name), getattr(found, field.name)
                yield from _differences(
                    mine, other, f"{where}.{field.name}" if where else field.name
                )
    elif isinstance(wanted, tuple) and isinstance(found, tuple) and len(wanted) == len(found):
        for index, (mine, other) in enumerate(zip(wanted, found, strict=True)):
            yield from _differences(mine, other, f"{where}[{index}]")
    elif not _equal(wanted, found):
        yield f"{where} is {_shown(wanted)}, and of a file {_shown(found)}"


def _equal(a: object, b: object) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=2.0**-23)
    return a == b


def _shown(value: object) -> str:
    text = str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
