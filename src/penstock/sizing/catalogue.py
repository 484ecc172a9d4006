"""The catalogue of accelerators and networks: ours (``catalogue.toml``), and users' own entries."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec

from penstock.errors import ConfigError
from penstock.sizing.accelerator import Accelerator, Network, number

FROM_MEMORY = "memory"
"""The source of figures that were not looked up."""


class CatalogueFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a catalogue's file holds."""

    accelerator: tuple[Accelerator, ...] = ()
    network: tuple[Network, ...] = ()
    sources: dict[str, str] = {}
    """Where figures are from, by the keys that name them."""


@dataclass(frozen=True)
class Catalogue:
    """Accelerators and networks by name. Raises ConfigError where a figure makes no sense."""

    accelerators: tuple[Accelerator, ...]
    networks: tuple[Network, ...]
    sources: dict[str, str]

    def __post_init__(self) -> None:
        for each in self.accelerators:
            _check_accelerator(each)
        for network in self.networks:
            _check_link("network", network.name, network.gb_per_s, network.us)

    @classmethod
    def load(cls, own: Path | None = None) -> Catalogue:
        """Read the built-in catalogue, and over it the file ``own``.

        An entry of the same name replaces ours. Raises ConfigError where the file is no catalogue.
        """
        ours = _read(Path(__file__).with_name("catalogue.toml"))
        theirs = CatalogueFile() if own is None else _read(own)
        return cls(
            _over(theirs.accelerator, ours.accelerator),
            _over(theirs.network, ours.network),
            {**ours.sources, **theirs.sources},
        )

    def find(self, name: str) -> Accelerator:
        """Return the accelerator of this name or alias, however it is spelled.

        Raises ConfigError that names the nearest.
        """
        return _found("accelerator", name, self.accelerators)

    def find_network(self, name: str) -> Network:
        """Return the network of this name or alias, however it is spelled.

        Raises ConfigError that names the nearest.
        """
        return _found("network", name, self.networks)


class _Entry(Protocol):
    """What has a name in the catalogue."""

    @property
    def name(self) -> str: ...

    @property
    def aliases(self) -> tuple[str, ...]: ...


Named = TypeVar("Named", bound=_Entry)


def _over(theirs: Sequence[Named], ours: Sequence[Named]) -> tuple[Named, ...]:
    names = {_key(each.name) for each in theirs}
    return (*theirs, *(each for each in ours if _key(each.name) not in names))


def _found(what: str, name: str, several: Sequence[Named]) -> Named:
    wanted = _key(name)
    names = {_key(n): each for each in several for n in (each.name, *each.aliases)}
    if wanted in names:
        return names[wanted]
    close = [key for key in names if wanted and (wanted in key or key in wanted)]
    close += difflib.get_close_matches(wanted, list(names), n=3, cutoff=0.5)
    nearest = list(dict.fromkeys(names[key].name for key in close))[:4]
    told = f"the nearest are {', '.join(nearest)}"
    if not nearest:
        told = f"there are {', '.join(each.name for each in several)}"
    raise ConfigError(
        f"there is no {what} {name!r} in the catalogue; {told}, or describe it in a file of your "
        "own (--catalogue FILE)"
    )


def _key(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _read(path: Path) -> CatalogueFile:
    try:
        return msgspec.toml.decode(path.read_bytes(), type=CatalogueFile)
    except OSError as error:
        raise ConfigError(f"the catalogue {path} cannot be read: {error.strerror}") from None
    except (msgspec.DecodeError, ValueError) as error:
        raise ConfigError(
            f"{path} is no catalogue of accelerators: {error}; docs/sizing.md has an example"
        ) from None


def _check_accelerator(each: Accelerator) -> None:
    price = () if each.price is None else (("price", each.price.usd, 0.0, 1e5),)
    attained = each.attains
    _check(
        f"accelerator {each.name}",
        ("memory_gib", number(each.memory_gib), 0.1, 1e5),
        ("bandwidth_gb", number(each.bandwidth_gb), 0.1, 1e6),
        ("most", each.most, 1, 1024),
        ("attained.bandwidth", attained.bandwidth, 0.01, 1.0),
        ("attained.arithmetic", attained.arithmetic, 0.01, 1.0),
        ("attained.step_us", attained.step_us, 0.0, 1e6),
        ("attained.op_us", attained.op_us, 0.0, 1e4),
        *((f"tera.{name}", value, 1e-3, 1e6) for name, value in _rates(each)),
        *price,
    )
    if each.link is not None:
        _check_link("link of accelerator", each.name, each.link.gb_per_s, each.link.us)


def _check_link(what: str, name: str, gb_per_s: float, us: float) -> None:
    _check(f"{what} {name}", ("gb_per_s", gb_per_s, 0.001, 1e5), ("us", us, 0.0, 1e6))


def _check(whose: str, *bounds: tuple[str, float, float, float]) -> None:
    for name, value, least, most in bounds:
        if not least <= value <= most:
            raise ConfigError(
                f"{name} of {whose} is {value:g}, and must be between {least:g} and {most:g}"
            )


def _rates(each: Accelerator) -> Iterable[tuple[str, float]]:
    for name in ("bf16", "f32", "fp8", "int8"):
        rate = getattr(each.tera, name)
        if rate is not None:
            yield name, number(rate)
