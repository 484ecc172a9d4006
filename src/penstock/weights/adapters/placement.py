"""Places an adapter's modules on the matrices of a plan.

A module of a checkpoint is not always one matrix of the plan: ``qkv_proj`` is three, of which each
has the whole ``lora_A`` and its own rows of ``lora_B``. What says so is the source of each matrix
(``interface/sources.py``), whose operations on rows are done to ``lora_B`` in the same way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from penstock.errors import WeightError
from penstock.interface.adapters import Adapter, AdapterSlots, LowRank
from penstock.interface.plan_weights import PlanWeight
from penstock.interface.sources import (
    OneOf,
    Packed,
    RowsOf,
    ScaledRows,
    Shape,
    Source,
    Stored,
    Transposed,
    Unpaired,
)
from penstock.models.names import NameMap
from penstock.weights.adapters.config import ALL_LINEAR
from penstock.weights.adapters.folder import AdapterFolder

_SUFFIX: Final = ".weight"
_SHOWN: Final = 3
"""Names that an error lists."""


@dataclass(frozen=True)
class _Place:
    """A matrix of the plan, as rows of a module of the checkpoint."""

    target: str
    module: str
    shape: Shape
    """The module's, ``[outputs, inputs]``."""
    source: Source
    """How the matrix is made of it."""


def placed(
    adapter: AdapterFolder,
    targets: Mapping[str, PlanWeight],
    names: NameMap | None,
    slots: AdapterSlots,
) -> Adapter:
    """``adapter`` by the names of the plan's matrices ``targets``, those that may be adapted.

    ``names`` are those of the model's checkpoints. Raises WeightError where the adapter is for
    another base, lacks what its options name, or has a rank that is larger than there is room for.
    """
    modules = _as_named(adapter.modules, names)
    places = [place for name, weight in targets.items() for place in _places(name, weight.source)]
    by_module: dict[str, list[_Place]] = {}
    for place in places:
        by_module.setdefault(place.module, []).append(place)
    _check_modules(adapter, modules, by_module)
    rank = max(each.rank for each in modules.values())
    if rank > slots.rank:
        raise WeightError(
            f"{adapter.path} has rank {rank}, and there is room for {slots.rank}; start with "
            f"--max-lora-rank {rank}"
        )
    matrices = {
        place.target: replace(own, up=_rows(place.source, own.up))
        for module, own in modules.items()
        for place in by_module[module]
    }
    return Adapter(adapter.digest, rank, matrices)


def _as_named(modules: Mapping[str, LowRank], names: NameMap | None) -> dict[str, LowRank]:
    """The modules by the names that checkpoints have in full."""
    if names is None:
        return dict(modules)
    return {name: modules[own] for name, own in names.completed(modules).items()}


def _check_modules(
    adapter: AdapterFolder,
    modules: Mapping[str, LowRank],
    places: Mapping[str, list[_Place]],
) -> None:
    unknown = [name for name in modules if name not in places]
    if unknown:
        raise WeightError(
            f"{adapter.path} is for another base: it adapts {_listed(unknown)}, and this model has "
            f"no such linear module that can be adapted (it has {_listed(sorted(places))}); give "
            "an adapter of this model, or merge it into its own base"
        )
    for name, own in modules.items():
        shape = places[name][0].shape
        if (len(own.up), own.down.shape[1]) != shape:
            raise WeightError(
                f"{adapter.path} is for another base: its tensors of {name} fit a matrix of "
                f"{[len(own.up), own.down.shape[1]]}, and this model's is {list(shape)}"
            )
    config = adapter.config
    if isinstance(config.target_modules, tuple):
        for end in config.target_modules:
            if not any(name == end or name.endswith("." + end) for name in modules):
                raise WeightError(
                    f"{adapter.path} lacks a target: {config.path.name} names {end!r} in "
                    "target_modules, and there is no tensor of such a module; take both files from "
                    "one adapter"
                )
    if config.target_modules == ALL_LINEAR or config.excludes:
        return
    covered = {place.target for name in modules for place in places[name]}
    missing = [
        name
        for name, those in places.items()
        if config.targets(name) and not {place.target for place in those} <= covered
    ]
    if missing:
        raise WeightError(
            f"{adapter.path} lacks targets: {config.path.name} names {_listed(missing)} in "
            "target_modules, and there are no tensors of these; save the adapter again"
        )


def _places(target: str, source: Source) -> Iterator[_Place]:
    """The modules that may hold a matrix, each as the checkpoint may name it; none where it is
    made otherwise."""
    if isinstance(source, OneOf):
        for each in source.sources:
            yield from _places(target, each)
        return
    inner: Source = source
    transposed = False
    while isinstance(inner, RowsOf | Unpaired | ScaledRows | Transposed):
        transposed = transposed or isinstance(inner, Transposed)
        inner = inner.source
    match inner:
        case Stored(name, shape) if name.endswith(_SUFFIX) and len(shape) == 2:
            of_module = shape[::-1] if transposed else shape
            yield _Place(target, name.removesuffix(_SUFFIX), of_module, source)
        case Packed(name, shape) if len(shape) == 2:
            yield _Place(target, name.removesuffix(_SUFFIX), shape, source)


def _rows(source: Source, up: NDArray[Any]) -> NDArray[Any]:
    """``lora_B`` of a module as the rows that ``source`` has of it. PEFT keeps it as
    ``[outputs, rank]`` also where the base is stored as ``[inputs, outputs]``."""
    match source:
        case RowsOf(inner, runs):
            whole = _rows(inner, up)
            return np.concatenate([whole[first:end] for first, end in runs])
        case Unpaired(inner, heads):
            order = np.arange(len(up)).reshape(heads, -1, 2).transpose(0, 2, 1).reshape(-1)
            return _rows(inner, up)[order]
        case ScaledRows(inner, factors):
            by = np.concatenate([np.full(count, factor, np.float32) for count, factor in factors])
            scaled: NDArray[Any] = _rows(inner, up).astype(np.float32) * by[:, None]
            return scaled
        case Transposed(inner):
            return _rows(inner, up)
    return up


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
