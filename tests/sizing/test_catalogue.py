"""The catalogue of accelerators, and users' entries over it."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import ConfigError
from penstock.sizing.accelerator import Figure
from penstock.sizing.catalogue import Catalogue

OWN = """
[[accelerator]]
name = "H100"
kind = "gpu"
memory_gib = 94
bandwidth_gb = 3900
tera = { bf16 = 835 }
"""


def test_every_figure_has_a_source() -> None:
    catalogue = Catalogue.load()
    for each in catalogue.accelerators:
        rates = (each.tera.bf16, each.tera.f32, each.tera.fp8, each.tera.int8)
        for figure in (each.memory_gib, each.bandwidth_gb, *(r for r in rates if r is not None)):
            assert isinstance(figure, Figure), each.name
            assert figure.source in catalogue.sources
        for other in (each.link, each.price):
            assert other is None or other.source in catalogue.sources
    named = [name for each in catalogue.accelerators for name in (each.name, *each.aliases)]
    assert len({name.lower() for name in named}) == len(named)


@pytest.mark.parametrize(("name", "ridge"), [("A100", 156), ("H100", 296), ("H200", 206)])
def test_published_ridges(name: str, ridge: float) -> None:
    assert Catalogue.load().find(name).ridge == pytest.approx(ridge, rel=0.025)


@pytest.mark.parametrize("name", ["h100", "H100-SXM", "h100_sxm5"])
def test_spellings(name: str) -> None:
    assert Catalogue.load().find(name).name == "H100"


def test_unknown_names_are_told_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"no accelerator 'RTX 4080'.*RTX 4090"):
        Catalogue.load().find("RTX 4080")


def test_own_entries_replace_ours(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text(OWN)
    catalogue = Catalogue.load(path)
    found = catalogue.find("h100")
    assert found.memory_bytes == 94 * 2**30
    assert found.rate("int8") == 835e12  # the next wider type's
    assert found.usd_per_hour is None
    assert sum(each.name == "H100" for each in catalogue.accelerators) == 1


@pytest.mark.parametrize(
    ("was", "becomes", "message"),
    [
        ("94", "-94", "memory_gib of accelerator H100 is -94"),
        ("3900", "nan", "bandwidth_gb"),
        ("835", "0", r"tera.bf16 of accelerator H100 is 0"),
        ("kind", "kid", "no catalogue"),
        ("[[", "[", "no catalogue"),
    ],
)
def test_bad_entries(tmp_path: Path, was: str, becomes: str, message: str) -> None:
    path = tmp_path / "own.toml"
    path.write_text(OWN.replace(was, becomes, 1))
    with pytest.raises(ConfigError, match=message):
        Catalogue.load(path)


def test_a_catalogue_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        Catalogue.load(tmp_path / "none.toml")
