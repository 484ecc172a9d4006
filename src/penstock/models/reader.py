"""Strict reading of configurations: every field is used, known to be idle, or refused."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from penstock.errors import ModelError
from penstock.models.unknown_fields import refusal
from penstock.models.wording import Wording

MAX_INTEGER: Final = 2**31 - 1
"""Dimensions and token ids are int32 in step inputs and native code."""


def _shown(value: object) -> str:
    try:
        shown = repr(value)
    except (ValueError, RecursionError):  # an integer of thousands of digits, a deep list
        return "too large to show"
    return shown if len(shown) <= 80 else shown[:77] + "..."


class ConfigReader:
    """Typed getters over one JSON object that remember which fields were asked for.

    Getters without a default raise :class:`~penstock.errors.ModelError` for an absent field; all
    raise it for a value of the wrong type or out of range. A field that is null has no value: it
    gets no default, and getters of something that must be there refuse it, as transformers does.
    :meth:`finish` refuses fields that no getter asked for, but for those named in ``ignore``, as
    ``name`` or as ``section.name``.
    """

    def __init__(
        self,
        fields: Mapping[str, object],
        where: str,
        ignore: Collection[str] = (),
        wording: Wording | None = None,
    ) -> None:
        """``wording``: what messages call fields, where the file is no ``config.json``."""
        self._fields = fields
        self._wording = wording
        self._where = self._file = where
        self._used: set[str] = set()
        self._ignore = ignore
        self._path = ""
        """The names of the sections around this object, each with a dot behind it."""
        self._ignored: list[str] = []
        self._names: Mapping[str, str] = {}
        self._defaults: Mapping[str, object] = {}

    def adapted(
        self,
        names: Mapping[str, str],
        defaults: Mapping[str, object],
        ignored: Iterable[str] = (),
    ) -> ConfigReader:
        """The same object as a family has it; what is read of it counts as read here, too.

        ``names``: what files call fields that are asked for by other names, which they may use as
        well. ``defaults``: what fields are that are absent, by the name that they are asked for.
        ``ignored``: fields of the family that change nothing. Raises ModelError where a field has
        two names and two values.
        """
        reader = ConfigReader(self._fields, self._where, self._ignore, self._wording)
        reader._file = self._file
        reader._path, reader._ignored = self._path, self._ignored
        reader._used, reader._names, reader._defaults = self._used, names, defaults
        for name, stored in names.items():
            both = self.has(name) and self.has(stored)
            if both and self.raw(name) != self.raw(stored):
                raise self.error(stored, f"contradicts {name} {_shown(self.raw(name))}")
        self._used.update(ignored)
        return reader

    def _stored(self, name: str) -> str:
        """Return the field's name in the file."""
        other = self._names.get(name, name)
        return name if self._fields.get(other) is None and name in self._fields else other

    def name(self, name: str) -> str:
        """What the file calls the field, or would."""
        return self._stored(name)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the fields that the object has."""
        return tuple(self._fields)

    @property
    def where(self) -> str:
        """The name of this object in error messages."""
        return self._where

    def error(self, name: str, problem: str) -> ModelError:
        """Return a ModelError about field ``name`` of this object; ``problem`` completes the
        sentence."""
        stored = self._stored(name)
        if stored in self._fields:
            shown = _shown(self._fields[stored])
        else:
            usual = self._defaults.get(name)
            shown = "absent" if usual is None else f"absent, which means {_shown(usual)}"
        if self._wording is None:
            return ModelError(f"{self._where}: {stored} ({shown}) {problem}")
        name = self._wording.name(self._path + stored)
        return ModelError(f"{self._file}: {name} ({shown}) {problem}")

    def has(self, name: str) -> bool:
        """Whether the field is there and not null, or has a value where it is not there."""
        return self._value(name) is not None

    def contains(self, name: str) -> bool:
        """Whether the field is there, null or not."""
        return self._stored(name) in self._fields

    def raw(self, name: str) -> object:
        """The value as JSON gave it; None where absent."""
        self._mark(name)
        return self._value(name)

    def _mark(self, name: str) -> None:
        """Note that the field has been asked for, by either of its names."""
        self._used.update((name, self._names.get(name, name)))

    def _value(self, name: str) -> object:
        """What the field is, or what it is where it is absent. A null stays one: transformers
        writes it where a configuration has no such thing."""
        stored = self._stored(name)
        return self._fields[stored] if stored in self._fields else self._defaults.get(name)

    def _required(self, name: str, default: object = None) -> object:
        """The field's value, or ``default`` where the file does not have it."""
        value = self.raw(name)
        if value is not None:
            return value
        if default is None:
            fix = "take config.json from the original checkpoint"
            if self._wording is not None:
                fix = self._wording.fix
            raise self.error(name, f"is required; {fix}")
        if self.contains(name):
            raise self.error(name, f"must not be null; leave it out for {_shown(default)}")
        return default

    def integer(
        self, name: str, default: int | None = None, *, low: int = 1, high: int = MAX_INTEGER
    ) -> int:
        """An integer in ``[low, high]``. A float such as 2.0, or a bool, is not one."""
        value = self._required(name, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.error(name, "must be an integer")
        if not low <= value <= high:
            raise self.error(name, f"must be from {low} to {high}")
        return value

    def optional_integer(self, name: str, *, low: int = 1, high: int = MAX_INTEGER) -> int | None:
        self.raw(name)
        return self.integer(name, low=low, high=high) if self.has(name) else None

    def number(
        self,
        name: str,
        default: float | None = None,
        *,
        above: float = 0.0,
        low: float | None = None,
        high: float,
    ) -> float:
        """A number up to ``high``, from ``low`` on or else greater than ``above``."""
        value = self._required(name, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.error(name, "must be a number")
        try:
            result = float(value)
        except OverflowError:
            result = math.inf
        if not math.isfinite(result):
            raise self.error(name, "must be finite")
        if result > high or (result <= above if low is None else result < low):
            least = f"greater than {above:g} and at most" if low is None else f"from {low:g} to"
            raise self.error(name, f"must be {least} {high:g}")
        return result

    def optional_number(
        self, name: str, *, above: float = 0.0, low: float | None = None, high: float
    ) -> float | None:
        self.raw(name)
        return self.number(name, above=above, low=low, high=high) if self.has(name) else None

    def boolean(self, name: str, default: bool) -> bool:
        value = self._required(name, default)
        if not isinstance(value, bool):
            raise self.error(name, "must be true or false")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        value = self._required(name, default)
        if not isinstance(value, str):
            raise self.error(name, "must be text")
        return value

    def texts(self, name: str) -> tuple[str, ...] | None:
        """A list of strings; None where absent."""
        value = self.raw(name)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
            raise self.error(name, "must be a list of text")
        return tuple(value)

    def integers(self, name: str, *, low: int = 0, high: int = MAX_INTEGER) -> tuple[int, ...]:
        """An integer or a list of integers; empty where absent."""
        value = self.raw(name)
        if value is None:
            return ()
        values = value if isinstance(value, list) else [value]
        for v in values:
            if isinstance(v, bool) or not isinstance(v, int):
                raise self.error(name, "must be an integer or a list of integers")
            if not low <= v <= high:
                raise self.error(name, f"must hold integers from {low} to {high}")
        return tuple(values)

    def numbers(self, name: str, *, low: float, high: float) -> tuple[float, ...]:
        """A list of numbers in ``[low, high]``."""
        value = self._required(name)
        if not isinstance(value, list):
            raise self.error(name, "must be a list of numbers")
        for v in value:
            if isinstance(v, bool) or not isinstance(v, (int, float)) or not low <= v <= high:
                raise self.error(name, f"must hold numbers from {low:g} to {high:g}")
        return tuple(float(v) for v in value)

    def section(self, name: str) -> ConfigReader | None:
        """A nested object; None where absent. The caller finishes it."""
        value = self.raw(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.error(name, "must be an object")
        inner = ConfigReader(value, f"{self._where}: {name}", self._ignore, self._wording)
        inner._file = self._file
        inner._path, inner._ignored = f"{self._path}{name}.", self._ignored
        return inner

    def only(self, name: str, value: object, why: str) -> None:
        """Accept the field only where absent, null, or ``value``; true is not 1."""
        found = self.raw(name)
        if found is None:
            return
        if isinstance(found, bool) is not isinstance(value, bool) or found != value:
            raise self.error(name, why)

    @property
    def ignored(self) -> tuple[str, ...]:
        """The fields of ``ignore`` that have been passed over, in this object and in sections."""
        return tuple(self._ignored)

    def only_unread(self, name: str, value: object, why: str) -> None:
        """:meth:`only`, for a field that nothing has asked for."""
        if name not in self._used:
            self.only(name, value, why)

    def finish(self, idle: Iterable[str] = ()) -> None:
        """Refuse fields that were neither read nor listed in ``idle``.

        A field that is null says nothing, and one whose name begins with an underscore is a note
        of the tool that wrote the file.
        """
        known = self._used | set(idle)
        unread = [
            name
            for name, value in self._fields.items()
            if name not in known and value is not None and not name.startswith("_")
        ]
        self._ignored += [self._path + name for name in unread if self._path + name in self._ignore]
        unknown = {
            self._path + name: _shown(self._fields[name])
            for name in unread
            if self._path + name not in self._ignore
        }
        if unknown:
            raise ModelError(f"{self._file}: {refusal(unknown, 'field')}")
