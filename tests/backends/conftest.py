from __future__ import annotations

from typing import Any

import pytest
from support.needs import native_module

from penstock.backends.cpu import native


@pytest.fixture(params=native.runnable(), scope="module")
def module(request: pytest.FixtureRequest) -> Any:
    """The native library, once for every instruction set that runs here."""
    return native_module(request.param)
