from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.bitwise import Bits, Served
from support.checkpoints import tiny_checkpoint
from support.overlapped import tiny_engine_plan

from penstock import LLM
from penstock.engine.loader import EnginePlan


@pytest.fixture(scope="session")
def engine_plan(tmp_path_factory: pytest.TempPathFactory) -> EnginePlan:
    return tiny_engine_plan(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def bfloat16_model(tmp_path: Path) -> Path:
    """A folder of a Llama in bfloat16, which the test may change."""
    folder = tmp_path / "model"
    shutil.copytree(tiny_checkpoint("llama", dtype="bfloat16"), folder)
    return folder


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
