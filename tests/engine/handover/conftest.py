"""Engines of one small model, and what they are expected to answer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from support.handed import (
    LLAMA,
    PROMPT,
    Answers,
    apart,
    complete,
    config,
    folder_of,
    plain,
    request,
)

from penstock.config import EngineConfig
from penstock.engine.core import EngineCore
from penstock.engine.handover.handshake import Introduction
from penstock.handover_config import DecodeRole
from penstock.peers.address import Address


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> EngineConfig:
    """Options of an engine of the model, whose weights are random."""
    return config(folder_of(tmp_path_factory.mktemp("model"), LLAMA))


@pytest.fixture(scope="module")
def source(asked: EngineConfig) -> Iterator[EngineCore]:
    """An engine without a role, whose cache has the prompt once ``expected`` is computed."""
    core = plain(asked)
    yield core
    core.close()


@pytest.fixture(scope="module")
def expected(source: EngineCore) -> Answers:
    """The answer to the prompt, computed in one engine."""
    return complete(source, [request("r", PROMPT)])


@pytest.fixture(scope="module")
def introduction(asked: EngineConfig) -> Introduction:
    """How a prefill engine of the same model introduces itself."""
    core, _ = apart(asked, DecodeRole(prefill=(Address("127.0.0.1", 1),)))
    its: Introduction = core._peers[0]._introduction
    core.close()
    return replace(its, side="prefill")
