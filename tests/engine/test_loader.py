"""All models of an engine are loaded in one place: none stays open when the start fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.overlapped import tiny_engine_plan

from penstock.backends import registry
from penstock.config import EngineConfig
from penstock.engine.core import EngineCore
from penstock.engine.loader import load, load_models, plan_engine
from penstock.errors import WeightError
from penstock.speculative_config import DraftModel, Ngram, SpeculativeConfig


class Bound:
    """Counts executors that were bound and closed; binding number ``fails`` raises."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open: list[Any] = []
        self.made = 0
        self.fails: int | None = None
        backend = type(registry.backend("reference"))
        self._bind = backend.bind
        monkeypatch.setattr(backend, "bind", lambda own, *args: self(own, *args))

    def __call__(self, *args: Any) -> Any:
        self.made += 1
        if self.made == self.fails:
            raise WeightError("the file is cut short")
        executor = self._bind(*args)
        self.open.append(executor)
        close = executor.close

        def closed() -> None:
            self.open.remove(executor)
            close()

        executor.close = closed  # type: ignore[method-assign]
        return executor


@pytest.fixture
def bound(monkeypatch: pytest.MonkeyPatch) -> Bound:
    return Bound(monkeypatch)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    tiny_engine_plan(path)
    return path


def options(folder: Path, speculative: SpeculativeConfig | None = None) -> EngineConfig:
    if speculative is None:
        speculative = DraftModel(model=str(folder), num_tokens=2)
    return EngineConfig(
        model=str(folder), load_format="dummy", backend="reference", speculative=speculative
    )


def test_a_draft_that_cannot_be_loaded_leaves_no_target_open(folder: Path, bound: Bound) -> None:
    bound.fails = 2
    with pytest.raises(WeightError, match="cut short"):
        EngineCore.start(options(folder))
    assert bound.made == 2
    assert bound.open == []


def test_an_engine_that_cannot_be_made_leaves_nothing_open(
    folder: Path, bound: Bound, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object, **options: object) -> None:
        raise MemoryError("no room for the books")

    monkeypatch.setattr("penstock.engine.core.Scheduler", fail)
    with pytest.raises(MemoryError):
        EngineCore.start(options(folder))
    assert bound.made == 2
    assert bound.open == []


def test_what_cannot_be_kept_is_not_left_open(
    folder: Path, bound: Bound, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object) -> bool:
        raise OSError("the disk is gone")

    monkeypatch.setattr("penstock.artifact.session.ArtifactSession.keep", fail)
    with pytest.raises(OSError, match="the disk is gone"):
        load(plan_engine(options(folder)))
    assert bound.made == 1
    assert bound.open == []


def test_an_engine_closes_both(folder: Path, bound: Bound) -> None:
    core = EngineCore.start(options(folder))
    assert len(bound.open) == 2
    core.close()
    assert bound.open == []


def test_phases_of_the_draft_are_distinguished(folder: Path) -> None:
    phases: list[str] = []
    load_models(plan_engine(options(folder)), phases.append).close()
    assert phases == [
        "open weights",
        "pack weights",
        "draft: open weights",
        "draft: pack weights",
    ]


def test_what_needs_no_model_loads_none(folder: Path, bound: Bound) -> None:
    core = EngineCore.start(options(folder, Ngram()))
    assert len(bound.open) == 1
    assert core.stats().drafts is not None
    core.close()


def test_an_engine_does_not_go_without_the_speculation_that_was_asked_for(folder: Path) -> None:
    engine_plan = plan_engine(options(folder))
    models = load_models(engine_plan)
    with pytest.raises(ValueError, match="speculation"):
        EngineCore(engine_plan, models.executor)
    models.close()
