"""An accelerator or a CPU as data: what it holds, how fast it reads and multiplies, what it costs.

Figures are those of one device, dense and at the peak, as makers state them. What an engine
attains of them is in :class:`Attained`.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from penstock.plan.costs import Arithmetic

DeviceKind = Literal["gpu", "cpu"]


class Figure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A number, and where it is from: a key of the catalogue's sources."""

    value: float
    source: str


class Price(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an hour of one device costs on demand."""

    usd: float
    on: str
    """The month in which that was so, such as 2026-03."""
    source: str


class Link(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What joins the devices of a machine."""

    name: str
    gb_per_s: float
    """10^9 bytes a second that one device receives while it sends as many."""
    us: float
    """Microseconds from the start of one exchange, its launch included, to its first byte."""
    source: str


class Network(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What joins machines."""

    name: str
    gb_per_s: float
    """10^9 bytes a second that one interface receives while it sends as many."""
    us: float
    """Microseconds from the start of one exchange to its first byte."""
    source: str
    per: Literal["device", "machine"] = "machine"
    """Whether each device has an interface of its own, or all of a machine share one."""
    aliases: tuple[str, ...] = ()


class Rates(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """10^12 operations of matrix products a second, a multiply-add being two; None: there are no
    instructions for it, and the next wider type's count."""

    bf16: float | Figure
    f32: float | Figure | None = None
    fp8: float | Figure | None = None
    int8: float | Figure | None = None


class Attained(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an engine makes of a device. The defaults are assumptions, for want of measurements."""

    bandwidth: float
    """The part of the peak bandwidth that products and attention read at."""
    arithmetic: float
    """The part of the peak arithmetic that large products reach."""
    step_us: float
    """Microseconds of a step outside its ops: scheduling, launch, sampling."""
    op_us: float
    """Microseconds that each op takes at least: a launch, or a barrier of threads."""


_USUAL: dict[DeviceKind, Attained] = {
    "gpu": Attained(bandwidth=0.8, arithmetic=0.6, step_us=500.0, op_us=2.0),
    "cpu": Attained(bandwidth=0.85, arithmetic=0.6, step_us=300.0, op_us=5.0),
}


class Accelerator(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One device of the catalogue."""

    name: str
    kind: DeviceKind
    memory_gib: float | Figure
    bandwidth_gb: float | Figure
    """10^9 bytes a second."""
    tera: Rates
    aliases: tuple[str, ...] = ()
    link: Link | None = None
    """None: a machine has one such device."""
    most: int = 8
    """Devices of one machine at most, where there is a link."""
    price: Price | None = None
    attained: Attained | None = None
    note: str = ""

    @property
    def memory_bytes(self) -> float:
        return number(self.memory_gib) * 2**30

    @property
    def bandwidth(self) -> float:
        """Peak bytes a second."""
        return number(self.bandwidth_gb) * 1e9

    def rate(self, arithmetic: Arithmetic) -> float:
        """Peak operations a second of products of this kind."""
        rates = self.tera
        found = {"f32": rates.f32, "bf16": rates.bf16, "int8": rates.int8}[arithmetic]
        return number(rates.bf16 if found is None else found) * 1e12

    @property
    def ridge(self) -> float:
        """Operations for each byte read above which bf16 products are bound by arithmetic."""
        return self.rate("bf16") / self.bandwidth

    @property
    def attains(self) -> Attained:
        return self.attained or _USUAL[self.kind]

    @property
    def usd_per_hour(self) -> float | None:
        return None if self.price is None else self.price.usd


def number(figure: float | Figure) -> float:
    return figure.value if isinstance(figure, Figure) else figure
