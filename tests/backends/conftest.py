from __future__ import annotations

from typing import Any

import pytest
from support.native_executor import make
from support.needs import native_module

from penstock.backends.cpu import native


@pytest.fixture(params=native.runnable(), scope="module")
def module(request: pytest.FixtureRequest) -> Any:
    """The native library, once for every instruction set that runs here."""
    return native_module(request.param)


@pytest.fixture(scope="session")
def one_module() -> Any:
    """The native library of one instruction set, for what is the same code in every variant: checks
    of arguments, and the pool of threads."""
    return native.load()


@pytest.fixture
def executor(one_module: Any) -> Any:
    """An executor without a cache, to which ops are appended by hand."""
    return make(one_module)
