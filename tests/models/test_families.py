"""The table of families agrees with their modules, and a model's start imports its own alone."""

from __future__ import annotations

import subprocess
import sys

import pytest

from penstock.models.families import FAMILIES, family_modules, family_of_type


def test_the_table_has_what_the_modules_say() -> None:
    said = {
        name: module.ARCHITECTURE
        for module in family_modules()
        for name in (module.ARCHITECTURE, *getattr(module, "ALIASES", ()))
    }
    assert said == {name: family.architecture for name, family in FAMILIES.items()}
    assert "LlamaModel" not in FAMILIES


def test_types_are_found_whatever_the_module_is_called() -> None:
    for module in family_modules():
        family = family_of_type(module.MODEL_TYPE)
        assert family is not None
        assert family.architecture == module.ARCHITECTURE
    assert family_of_type("gemma3_text") is not None
    assert family_of_type("bert") is None
    assert family_of_type(None) is None


@pytest.mark.slow
def test_one_family_is_imported() -> None:
    code = (
        "import sys; from penstock.models.families import family_of_type; "
        "family_of_type('mixtral'); print('penstock.models.mpt' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "False\n"
