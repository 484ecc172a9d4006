from __future__ import annotations

import pytest
from support.overlapped import tiny_blueprint

from penstock.engine.loader import Blueprint


@pytest.fixture(scope="session")
def blueprint(tmp_path_factory: pytest.TempPathFactory) -> Blueprint:
    return tiny_blueprint(tmp_path_factory.mktemp("tiny"))
