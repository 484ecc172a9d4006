"""The catalogue of accelerators: ours (``catalogue.toml``), and users' own entries over it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from penstock.errors import ConfigError
from penstock.sizing.accelerator import Accelerator, number

FROM_MEMORY = "memory"
"""The source of figures that were not looked up."""


class CatalogueFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a catalogue's file holds."""

    accelerator: tuple[Accelerator, ...]
    sources: dict[str, str] = {}
    """Where figures are from, by the keys that name them."""


@dataclass(frozen=True)
class Catalogue:
    """Accelerators by name. Raises ConfigError where a figure makes no sense."""

    accelerators: tuple[Accelerator, ...]
    sources: dict[str, str]

    def __post_init__(self) -> None:
        for each in self.accelerators:
            _check(each)

    @classmethod
    def load(cls, own: Path | None = None) -> Catalogue:
        """Read the built-in catalogue, and over it the file ``own``.

        An entry of the same name replaces ours. Raises ConfigError where the file is no catalogue.
        """
        ours = _read(Path(__file__).with_name("catalogue.toml"))
        if own is None:
            return cls(ours.accelerator, ours.sources)
        theirs = _read(own)
        names = {_key(each.name) for each in theirs.accelerator}
        kept = tuple(each for each in ours.accelerator if _key(each.name) not in names)
        return cls((*theirs.accelerator, *kept), {**ours.sources, **theirs.sources})

    def find(self, name: str) -> Accelerator:
        """Return the accelerator of this name or alias, however it is spelled.

        Raises ConfigError that names the nearest.
        """
        wanted = _key(name)
        for each in self.accelerators:
            if wanted in map(_key, (each.name, *each.aliases)):
                return each
        raise ConfigError(
            f"there is no accelerator {name!r} in the catalogue; {self._nearest(wanted)}, or "
            "describe it in a file of your own (--catalogue FILE)"
        )

    def _nearest(self, wanted: str) -> str:
        names = {
            _key(n): each.name for each in self.accelerators for n in (each.name, *each.aliases)
        }
        close = [key for key in names if wanted and (wanted in key or key in wanted)]
        close += difflib.get_close_matches(wanted, list(names), n=3, cutoff=0.5)
        found = list(dict.fromkeys(names[key] for key in close))[:4]
        if found:
            return f"the nearest are {', '.join(found)}"
        return f"there are {', '.join(each.name for each in self.accelerators)}"


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


def _check(each: Accelerator) -> None:
    price = () if each.price is None else (("price", each.price.usd, 0.0, 1e5),)
    link = () if each.link is None else (("link.gb_per_s", each.link.gb_per_s, 0.01, 1e5),)
    attained = each.attains
    bounds: Sequence[tuple[str, float, float, float]] = (
        ("memory_gib", number(each.memory_gib), 0.1, 1e5),
        ("bandwidth_gb", number(each.bandwidth_gb), 0.1, 1e6),
        ("most", each.most, 1, 1024),
        ("attained.bandwidth", attained.bandwidth, 0.01, 1.0),
        ("attained.arithmetic", attained.arithmetic, 0.01, 1.0),
        ("attained.step_us", attained.step_us, 0.0, 1e6),
        ("attained.op_us", attained.op_us, 0.0, 1e4),
        *((f"tera.{name}", value, 1e-3, 1e6) for name, value in _rates(each)),
        *price,
        *link,
    )
    for name, value, least, most in bounds:
        if not least <= value <= most:
            raise ConfigError(
                f"{name} of accelerator {each.name} is {value:g}, and must be between {least:g} "
                f"and {most:g}"
            )


def _rates(each: Accelerator) -> Iterable[tuple[str, float]]:
    for name in ("bf16", "f32", "fp8", "int8"):
        rate = getattr(each.tera, name)
        if rate is not None:
            yield name, number(rate)
