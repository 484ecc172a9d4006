"""The language of the field table: which values of unsupported fields are accepted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, get_origin

import msgspec

Schema = dict[str, Any]
Effect = Literal["nothing", "advice", "refused"]

EVERY_NAME = "*"
"""Wildcard for the last part of a rule's field: every name that no other rule and no struct has."""


@dataclass(frozen=True)
class Values:
    """A set of JSON values: listed values, and all values of a type."""

    listed: tuple[object, ...] = ()
    kind: Any = None
    """A type as msgspec takes it; ``Any`` means any JSON, and None means only the listed values."""

    def __bool__(self) -> bool:
        return bool(self.listed) or self.kind is not None

    def __contains__(self, value: object) -> bool:
        if isinstance(value, dict | list):
            # Never read through: it may be of megabytes.
            return (
                self.kind is Any
                or isinstance(value, self._container)
                or any(_same(value, each) for each in self._listed_containers)
            )
        if self.kind is Any or _scalar(value) in self._listed_scalars:
            return True
        if self.kind is None:
            return False
        try:
            msgspec.convert(value, self.kind)
        except msgspec.ValidationError:
            return False
        return True

    @cached_property
    def _container(self) -> type | tuple[()]:
        """The type of the objects or lists that the kind holds, whatever is in them."""
        origin = get_origin(self.kind)
        return origin if origin in (dict, list) else ()

    @cached_property
    def _listed_containers(self) -> tuple[object, ...]:
        return tuple(each for each in self.listed if isinstance(each, dict | list))

    @cached_property
    def _listed_scalars(self) -> frozenset[object]:
        return frozenset(_scalar(each) for each in self.listed if not isinstance(each, dict | list))

    def schemas(self) -> Iterator[Schema]:
        """Return JSON schemas whose union is this set."""
        if self.listed:
            yield {"enum": list(self.listed)}
        if self.kind is Any:
            yield {}
        elif self.kind is not None:
            yield msgspec.json.schema(self.kind)

    def texts(self) -> list[str]:
        """Describe the set for people: values as JSON, types by their JSON names."""
        texts = [msgspec.json.encode(value).decode() for value in self.listed]
        for schema in self.schemas():
            for each in schema.get("anyOf", [schema]):
                if "type" in each:
                    texts.append(f"any {each['type']}")
                elif "enum" not in each:
                    texts.append("any")
                elif each["enum"] != list(self.listed):
                    texts += [msgspec.json.encode(value).decode() for value in each["enum"]]
        return texts

    def __str__(self) -> str:
        return ", ".join(self.texts())


def these(*values: object) -> Values:
    """Return the set of exactly ``values``, compared as JSON: 1 equals 1.0, and true equals no
    number."""
    return Values(listed=values)


def any_of(kind: Any) -> Values:
    """Return the set of all values of ``kind``, a type as msgspec takes it."""
    return Values(kind=kind)


ANYTHING = any_of(Any)
NO_VALUES = Values()


@dataclass(frozen=True, eq=False)
class Rule:
    """How one field is treated that the server does not support as its name says.

    A value is checked once, when a body is read. A value in ``nothing`` has no effect and is
    removed. A value in ``advice`` is advisory: it is removed too, and a header of the answer names
    the field. Any other value is left to the struct of the body where that has the field (the rule
    then covers some values only), and is refused elsewhere, with ``why`` and ``fix``. A null is
    never checked: everywhere it means that the field is not given.
    """

    field: str
    """Path of the field in the body: ``store``, ``messages[].cache_control``, ``include[]``. The
    last part may be EVERY_NAME. Where it ends with ``[]``, each element of the list is checked by
    itself."""
    endpoints: tuple[str, ...]
    why: str
    """What is done instead, or why nothing is; part of a sentence in an error message."""
    nothing: Values = NO_VALUES
    advice: Values = NO_VALUES
    fix: str = "leave it out"
    wish: bool = False
    """Whether the field asks for reasoning; it is advisory if the chat template reads no variable
    for it."""
    roles: tuple[str, ...] = ()
    """Roles of the messages that may have the field; empty means all roles."""
    alias: str = ""
    """The struct's name for the same field, in the same object."""
    acted: Values = NO_VALUES
    """List elements that the struct handles, where a rule checks elements."""

    def effect(self, value: object) -> Effect:
        if value in self.nothing:
            return "nothing"
        return "advice" if value in self.advice else "refused"

    @property
    def path(self) -> tuple[str, ...]:
        """The names that lead to the field, without ``[]``."""
        return tuple(self.field.replace("[]", "").split("."))

    @property
    def of_elements(self) -> bool:
        return self.field.endswith("[]")

    @property
    def allowed(self) -> list[Schema]:
        """Return JSON schemas of the values that the rule accepts."""
        return [*self.nothing.schemas(), *self.advice.schemas()]


def _scalar(value: object) -> object:
    """A key that is equal for equal JSON scalars: 1 equals 1.0, and true equals no number."""
    return ("boolean", value) if isinstance(value, bool) else value


def _same(one: object, other: object) -> bool:
    """Whether both are the same JSON value; in Python, unlike JSON, ``1 == True``."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[k], other[k]) for k in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return (type(one) is type(other) and one == other) or (
        isinstance(one, int | float) and isinstance(other, int | float) and one == other
    )
