"""What ``import penstock`` gives."""

from __future__ import annotations

import builtins
import re
from pathlib import Path

import penstock
from penstock import errors

ROOT = Path(__file__).parent.parent


def test_all_public_names_are_there() -> None:
    assert set(penstock._HOMES) < set(penstock.__all__)
    for name in penstock.__all__:
        assert getattr(penstock, name) is not None


def test_all_errors_are_public() -> None:
    ours = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.PenstockError)
    }
    assert len(ours) > 10
    for name in ours:
        assert getattr(penstock, name) is getattr(errors, name)
        assert name in penstock.__all__


def test_errors_that_the_docs_name_are_public() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    named = {name for page in pages for name in re.findall(r"\b[A-Z]\w*Error\b", page.read_text())}
    named -= set(vars(builtins))
    assert {"ConfigError", "ModelError", "EngineDeadError"} <= named
    assert named <= set(penstock.__all__)
