"""The page of the fleet: static files, some of them those of a server's page."""

from __future__ import annotations

from importlib.resources import files
from typing import Final

from penstock.server.page.bundle import Asset, Bundle

PAGE: Final = "/fleet"
_OWN: Final = ("fleet.js", "fleet.css")
_OF_SERVER: Final = ("style/base.css", "ui/dom.js", "icon.svg")


def fleet_page() -> Bundle:
    """``/fleet``, and what it loads."""
    own, shared = files("penstock.router") / "page", files("penstock.server.page") / "static"
    assets = {PAGE: Asset.of((own / "fleet.html").read_bytes(), ".html")}
    for name, folder in (*((n, own) for n in _OWN), *((n, shared) for n in _OF_SERVER)):
        base = name.rpartition("/")[2]
        content = folder.joinpath(name).read_bytes()
        assets[f"{PAGE}/{base}"] = Asset.of(content, base[base.rfind(".") :])
    return Bundle(assets)
