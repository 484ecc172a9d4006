"""The objects in a body: the structs that they are decoded into, and the field table's rules."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

import msgspec
from msgspec import inspect

from penstock.server.fields.rules import Rule


@dataclass
class Place:
    """One kind of object in a body. Objects in a list share the place of the list."""

    structs: tuple[str, ...] = ()
    """Names of its structs: one, or several for a tagged union. Empty for an object that only the
    field table knows, or a plain dict that is checked later."""
    names: frozenset[str] = frozenset()
    """Field names of the structs."""
    strict: bool = True
    """Whether names other than these are refused here."""
    rules: dict[str, Rule] = field(default_factory=dict)
    """Rules of the field table, by field name."""
    inner: dict[str, Place] = field(default_factory=dict)
    """Places of the fields that hold an object or a list of objects, by field name."""

    @classmethod
    def of(cls, kind: type[msgspec.Struct], rules: Iterable[Rule]) -> Place:
        """Return the place of the body ``kind``, with everything inside it."""
        body = _of_type(inspect.type_info(kind))
        assert body is not None
        for rule in rules:
            place = body
            for name in rule.path[:-1]:
                if name not in place.inner:
                    place.inner[name] = Place(strict=place.strict and name not in place.names)
                place = place.inner[name]
            place.rules[rule.path[-1]] = rule
        return body

    @cached_property
    def scalars(self) -> frozenset[str]:
        """Fields that are the struct's alone as long as they hold neither null nor a container."""
        return self.names - self.rules.keys()

    def at(self, path: str) -> Place:
        """Return the place of an object by its full path in a body; this place where the path is
        unknown."""
        place = self
        for name in filter(None, re.sub(r"\[[^\]]*\]", "", path).split(".")):
            place = place.inner.get(name, self)
        return place


def _of_type(kind: inspect.Type) -> Place | None:
    """Return the place of a type; None if it is not an object with named fields."""
    if isinstance(kind, inspect.StructType):
        tag = {kind.tag_field} if kind.tag_field is not None else set()
        inner = {each.encode_name: _of_type(each.type) for each in kind.fields}
        return Place(
            structs=(kind.cls.__name__,),
            names=frozenset(inner) | tag,
            inner={name: place for name, place in inner.items() if place is not None},
        )
    if isinstance(kind, inspect.ListType):
        return _of_type(kind.item_type)
    if isinstance(kind, inspect.UnionType):
        found = [place for each in kind.types if (place := _of_type(each)) is not None]
        return _joined(found) if found else None
    return None


def _joined(places: list[Place]) -> Place:
    """Merge the places of a union's members; decoding checks which member has a field."""
    return Place(
        structs=tuple(name for place in places for name in place.structs),
        names=frozenset().union(*(place.names for place in places)),
        inner={name: inner for place in places for name, inner in place.inner.items()},
    )
