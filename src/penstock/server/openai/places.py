"""Where the fields of a body stand: the structs that it is decoded into, with the table's rules."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

import msgspec
from msgspec import inspect

from penstock.server.openai.fields import Rule


@dataclass
class Place:
    """One kind of object in a body. An object in a list of the body is at the place of the list."""

    structs: tuple[str, ...] = ()
    """Their names: one, or as many as a tagged union has. Empty: known only from the table, or a
    plain dict checked later."""
    names: frozenset[str] = frozenset()
    """Fields of the structs."""
    strict: bool = True
    """Whether other names are refused here."""
    rules: dict[str, Rule] = field(default_factory=dict)
    """By name."""
    inner: dict[str, Place] = field(default_factory=dict)
    """What the fields hold, where that is an object or a list of them."""

    @classmethod
    def of(cls, kind: type[msgspec.Struct], rules: Iterable[Rule]) -> Place:
        """The body ``kind`` and all that is in it."""
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
        """The place of an object, by its whole name in a body; this one where it is not known."""
        place = self
        for name in filter(None, re.sub(r"\[[^\]]*\]", "", path).split(".")):
            place = place.inner.get(name, self)
        return place


def _of_type(kind: inspect.Type) -> Place | None:
    """None for what is no object with named fields."""
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
    """One for all members of a union; which of them has a field is looked at when it is decoded."""
    return Place(
        structs=tuple(name for place in places for name in place.structs),
        names=frozenset().union(*(place.names for place in places)),
        inner={name: inner for place in places for name, inner in place.inner.items()},
    )
