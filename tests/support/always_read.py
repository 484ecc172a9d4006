"""A fixture for tests of what is read: that it is worth it does not depend on the machine."""

from __future__ import annotations

import pytest


@pytest.fixture
def always_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is below the pool of blocks is read, however busy the machine is."""
    from penstock.engine.tiers.rule import ReadingCosts

    monkeypatch.setattr(ReadingCosts, "worth", lambda *args: True)
    monkeypatch.setattr(ReadingCosts, "patience_s", lambda *args: 60.0)
