from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.bitwise import Bits, Served
from support.overlapped import tiny_engine_plan

from penstock import LLM
from penstock.engine.loader import EnginePlan


@pytest.fixture(scope="session")
def engine_plan(tmp_path_factory: pytest.TempPathFactory) -> EnginePlan:
    return tiny_engine_plan(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def plain(model: Served) -> Iterator[LLM]:
    """An engine of the module's ``model`` that finds no prefixes."""
    with model.start(enable_prefix_caching=False) as llm:
        yield llm


@pytest.fixture(scope="module")
def expected(plain: LLM, request: pytest.FixtureRequest) -> list[Bits]:
    """What is said of each of the module's ``REQUESTS`` when nothing else runs."""
    bits: list[Bits] = request.module.REQUESTS.alone(plain)
    return bits
