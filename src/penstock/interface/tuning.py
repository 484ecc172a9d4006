"""What was chosen for a machine by measuring on it: how products are carried out, never what they
compute or how their weights are packed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Protocol

import msgspec

_Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]


class Choice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A value that was clearly faster than the one before it."""

    parameter: str
    value: _Int32
    rows: _Int32
    """Number of rows at which it was measured."""
    saved: Annotated[float, msgspec.Meta(ge=-1.0, le=1.0)]
    """Share of the previous time that was saved: 0.1 is a tenth."""


class TunedProduct(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All products of one shape and format."""

    product: str
    """Name of the shape and format, such as ``int4 2x8192x2048``."""
    choices: tuple[Choice, ...]
    """Choices in the order in which they were made. Of two for one parameter, the later one
    holds."""


class Circumstances(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The conditions for which measurements are valid."""

    cpu: str
    threads: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]

    def __str__(self) -> str:
        return f"{self.threads} thread{'s' if self.threads != 1 else ''} of {self.cpu}"


class Tuning(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Results of tuning: measured once, and valid for every start in the same circumstances."""

    circumstances: Circumstances
    seconds: Annotated[float, msgspec.Meta(ge=0.0, le=1e9)]
    """Seconds that measuring took."""
    products: tuple[TunedProduct, ...]

    def summary(self) -> str:
        """One line: for whom, how long it took, what it gave."""
        saved = [choice.saved for product in self.products for choice in product.choices]
        count = len(self.products)
        for_whom = f"{count} product{'s' if count != 1 else ''} for {self.circumstances}"
        took = f"measured in {self.seconds:.1f} s"
        if not saved:
            return f"{for_whom}, {took}: nothing is clearly faster than the defaults"
        least, most = round(100 * min(saved)), round(100 * max(saved))
        percent = f"{least} to {most} %" if least < most else f"{most} %"
        values = f"{len(saved)} choice{'s' if len(saved) != 1 else ''}"
        return f"{for_whom}, {took}: {values} saving {percent} of a product's time"

    def details(self) -> list[str]:
        """A line for each product that something was chosen for."""
        return [
            f"{product.product}: "
            + ", ".join(
                f"{c.parameter} {c.value} ({100 * c.saved:.0f} % at {c.rows} "
                f"row{'s' if c.rows != 1 else ''})"
                for c in product.choices
            )
            for product in self.products
            if product.choices
        ]


class Tunable(Protocol):
    """An executor's products. Neither method may run while a step does."""

    @property
    def circumstances(self) -> Circumstances: ...

    def apply(self, tuning: Tuning) -> None:
        """Carry products out as ``tuning`` says.

        Raises ValueError, and changes nothing, where it is of other products or has a parameter or
        a value that this version does not know.
        """
        ...

    def measure(self) -> Tuning:
        """Find the fastest parameters, apply them and return them. Takes about a second."""
        ...


def put_among(tunings: Sequence[Tuning], tuning: Tuning, most: int) -> tuple[Tuning, ...]:
    """``tunings`` with ``tuning`` in place of what was measured in its circumstances; the ``most``
    latest of them."""
    others = [t for t in tunings if t.circumstances != tuning.circumstances]
    return (*others, tuning)[-most:]
