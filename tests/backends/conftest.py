from __future__ import annotations

from typing import Any

import pytest

from penstock.backends.cpu import native
from penstock.errors import ConfigError


@pytest.fixture(params=native.runnable(), scope="module")
def module(request: pytest.FixtureRequest) -> Any:
    """The native library, once for every instruction set that runs here."""
    try:
        return native.load(request.param)
    except ConfigError as error:  # the CPU has it, the system does not grant it
        pytest.skip(str(error))
