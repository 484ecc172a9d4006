"""Loads the core of an engine's process.

The core is a plug point: a :data:`CoreLoader` is named as ``module:function`` (``--core``), called
with the :class:`~penstock.config.EngineConfig` and a :class:`Startup`, and returns a
:class:`LoadedCore`. :func:`load_core` is the default and loads the real engine; others wrap that
(:func:`load_core_around`), or stand in for it in tests.
"""

from __future__ import annotations

import importlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from penstock.collector import uncollected
from penstock.config import EngineConfig
from penstock.demo_model import is_demo_model
from penstock.engine.ipc.startup import Ledger
from penstock.engine.ipc.wire import FromEngine, Loading, Located, ModelFacts
from penstock.engine.stepped import Core
from penstock.errors import ConfigError, PenstockError
from penstock.handover_config import Role
from penstock.interface.executor import Executor, failure_of
from penstock.processes.wake import Wake
from penstock.resolved_config import ResolvedConfig

_TELL_S = 0.1
"""Least time, in seconds, between two reports of progress within a phase."""


@dataclass(frozen=True)
class LoadedCore:
    """A core that is ready to step, and what the front end has to know of it."""

    core: Core
    model: ModelFacts
    config: ResolvedConfig | None = None
    failure: Callable[[], PenstockError | None] = lambda: None
    """Returns why the core cannot go on, if that is known between steps; else None. Another thread
    calls it, so it must not refer to the core (``heartbeat``)."""
    wake: Wake | None = None
    """Set when the core has work that no message brought; None if all of its work comes by
    messages."""


class Startup:
    """What a core's loader reports while it works."""

    def __init__(
        self, ledger: Ledger, send: Callable[[FromEngine], None], role: Role | None = None
    ) -> None:
        self.ledger = ledger
        self.role = role
        """The engine's part in disaggregated prefill; None: it computes all prompts itself."""
        self._send = send
        self._phase = ""
        self._next_told = 0.0

    def located(self, tokenizer_path: str) -> None:
        """The tokenizer is in this folder: the front end may load it now."""
        self._send(Located(tokenizer_path))

    def loading(self, phase: str, done: float, num_bytes: int) -> None:
        """The ProgressCallback that reports to the front end: every new phase, and the progress
        within one at most ten times a second."""
        now = time.monotonic()
        if phase != self._phase or now >= self._next_told:
            self._phase, self._next_told = phase, now + _TELL_S
            self._send(Loading(phase, done, num_bytes))


CoreLoader = Callable[[EngineConfig, Startup], LoadedCore]


def import_loader(name: str) -> CoreLoader:
    """Return the loader named ``module:function``. Raises ConfigError if there is none."""
    module, colon, function = name.partition(":")
    try:
        loader = getattr(importlib.import_module(module), function) if colon else None
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"the engine core {name!r} cannot be imported: {error}") from error
    if not callable(loader):
        raise ConfigError(f"the engine core must be given as module:function, not {name!r}")
    return loader  # type: ignore[no-any-return]


def load_core(config: EngineConfig, startup: Startup) -> LoadedCore:
    """Load the real engine: resolve the options, load the model, bind it."""
    return load_core_around(config, startup, lambda executor: executor)


def load_core_around(
    config: EngineConfig, startup: Startup, around: Callable[[Executor], Executor]
) -> LoadedCore:
    """Load the real engine, its executor wrapped by ``around``: what that returns must pass all
    steps on to the executor that it was given."""
    with uncollected():
        from penstock.engine.core import EngineCore
        from penstock.engine.loader import load_models, open_model, plan_engine

    mark = startup.ledger.mark
    mark("engine imports")
    files = open_model(config)
    engine_plan = plan_engine(config, files)
    startup.located(engine_plan.config.tokenizer_path)
    mark("config")
    station = None
    if startup.role is not None:
        from penstock.engine.handover.station import Station

        station = Station.open(startup.role, engine_plan)
    models = load_models(
        engine_plan, mark, startup.ledger.note, files=files, progress=startup.loading
    )
    core = EngineCore.of(replace(models, executor=around(models.executor)))
    facts = ModelFacts(
        served_model_name=core.config.served_model_name,
        tokenizer_path=core.config.tokenizer_path,
        lengths=core.config.lengths,
        vocab_size=core.spec.vocab_size,
        bos_token_id=core.spec.bos_token_id,
        eos_token_ids=core.spec.eos_token_ids,
        sampling_defaults=core.config.sampling_defaults,
        is_demo=is_demo_model(core.config.model_path),
        architecture=core.spec.architecture,
        parameters=engine_plan.plan.num_parameters,
        max_loras=core.config.max_loras,
        adapters=dict(core.adapters.names),
        labels=core.labels,
        block_place=core.block_place,
    )
    if station is not None:
        apart = station.begin(core, files)
        startup.ledger.note(logging.INFO, station.told)
        mark("digest of the weights")
        return LoadedCore(apart, facts, core.config, wake=station.wake)
    return LoadedCore(
        core, facts, core.config, partial(failure_of, models.executor), wake=core.wake
    )
