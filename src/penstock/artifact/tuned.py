"""Parameters that were chosen by measuring on this machine, kept beside the weights they suit."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from penstock.errors import ArtifactError

TunedValue = int | float | str


class Tuned(msgspec.Struct, frozen=True):
    """A value, and the figure that it was chosen for."""

    value: TunedValue
    figure: float
    unit: str
    """Of the figure, such as ``tokens/s``."""


class TunedParameters:
    """Typed reading of the ``tuned`` section of a manifest.

    A parameter that was not tuned gives the default; one of another type or out of its range
    raises ArtifactError, since it was not written for this reader.
    """

    def __init__(self, section: Mapping[str, Tuned]) -> None:
        self._section = section

    def integer(self, name: str, default: int, *, least: int, most: int) -> int:
        """The integer ``name``, within ``least`` and ``most``, both included."""
        value = self._value(name, default)
        if not isinstance(value, int) or not least <= value <= most:
            raise _unusable(name, value, f"an integer from {least} to {most}")
        return value

    def number(self, name: str, default: float) -> float:
        value = self._value(name, default)
        if isinstance(value, str):
            raise _unusable(name, value, "a number")
        return float(value)

    def choice(self, name: str, default: str, choices: tuple[str, ...]) -> str:
        value = self._value(name, default)
        if value not in choices:
            raise _unusable(name, value, "one of " + ", ".join(choices))
        return str(value)

    def _value(self, name: str, default: TunedValue) -> TunedValue:
        return self._section[name].value if name in self._section else default


def _unusable(name: str, value: TunedValue, wanted: str) -> ArtifactError:
    return ArtifactError(f"the tuned parameter {name} is {value!r}, not {wanted}")
