from __future__ import annotations

import pytest
from support.overlapped import tiny_engine_plan

from penstock.engine.loader import EnginePlan


@pytest.fixture(scope="session")
def engine_plan(tmp_path_factory: pytest.TempPathFactory) -> EnginePlan:
    return tiny_engine_plan(tmp_path_factory.mktemp("tiny"))
