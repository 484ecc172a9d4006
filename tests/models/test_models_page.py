"""docs/models.md lists what the registry has."""

from __future__ import annotations

from support.models_page import PAGE, with_table

from penstock.models.families import family_modules


def test_the_page_lists_all_families() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert with_table(page) == page, "run: PYTHONPATH=src:tests python -m support.models_page"
    assert all(f"`{module.ARCHITECTURE}`" in page for module in family_modules())
