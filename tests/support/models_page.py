"""The table of ``docs/models.md``, made of the registry and of what tests compare.

``PYTHONPATH=src:tests python -m support.models_page`` writes it into the page.
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Final

from penstock.models.families import family_modules
from support.families import FAMILIES

PAGE: Final = Path(__file__).parents[2] / "docs" / "models.md"
_BEGIN, _END = "<!-- families -->\n", "<!-- end of families -->"


def table() -> str:
    """A row for each family, in the order of their names."""
    rows = sorted((_row(module) for module in family_modules()), key=str.casefold)
    head = "| models | `architectures` | how they are made | cases compared |\n|---|---|---|--:|\n"
    return head + "".join(rows)


def with_table(page: str) -> str:
    """``page`` with the table of today."""
    before, _, rest = page.partition(_BEGIN)
    return f"{before}{_BEGIN}\n{table()}\n{_END}{rest.partition(_END)[2]}"


def _row(module: ModuleType) -> str:
    names = (module.ARCHITECTURE, *getattr(module, "ALIASES", ()))
    assert module.__doc__ is not None
    made = " ".join(module.__doc__.split()).rpartition(": ")[2]
    made = made[0].upper() + made[1:].removesuffix(".")
    cases = sum(len(tiny.cases) for tiny in FAMILIES.values() if tiny.model in names)
    shown = ", ".join(f"`{name}`" for name in names)
    return f"| {module.KNOWN_AS} | {shown} | {made} | {cases or 'by other names'} |\n"


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
