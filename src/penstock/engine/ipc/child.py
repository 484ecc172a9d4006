"""The engine's own process: load a core, report ready, then step while there is work.

Started by :class:`penstock.engine.ipc.spawn.EngineChild` as
``python -m penstock.engine.ipc.child --fd N --core module:function``. The core is a plug point: the
function is called with the :class:`~penstock.config.EngineConfig` and a :class:`Startup`, and
returns a :class:`LoadedCore`; :func:`load_core` is the one that everybody uses.
"""

from __future__ import annotations

import time

_ENTERED_AT = time.monotonic()  # before the imports below, which the ledger counts apart

import argparse  # noqa: E402
import contextlib  # noqa: E402
import gc  # noqa: E402
import importlib  # noqa: E402
import logging  # noqa: E402
import os  # noqa: E402
import signal  # noqa: E402
import socket  # noqa: E402
import sys  # noqa: E402
import threading  # noqa: E402
import traceback  # noqa: E402
from collections.abc import Callable, Iterator, Sequence  # noqa: E402
from dataclasses import dataclass, replace  # noqa: E402
from functools import partial  # noqa: E402
from typing import Final  # noqa: E402

from penstock.collector import uncollected  # noqa: E402
from penstock.config import EngineConfig  # noqa: E402
from penstock.demo_model import is_demo_model  # noqa: E402
from penstock.engine.ipc.log_lines import logging_to  # noqa: E402
from penstock.engine.ipc.startup import Ledger  # noqa: E402
from penstock.engine.ipc.step_meter import StepMeter  # noqa: E402
from penstock.engine.ipc.wire import (  # noqa: E402
    BEAT_S,
    AdapterReply,
    Beat,
    CacheQuery,
    CacheReply,
    CheckIntegrity,
    Done,
    DropAdapter,
    Fatal,
    FrameSocket,
    FromEngine,
    LoadAdapter,
    Loading,
    Located,
    ModelFacts,
    Ready,
    Refused,
    ResetCache,
    Shutdown,
    Start,
    StatsQuery,
    StatsReply,
    encode_frame,
    encode_updates,
)
from penstock.engine.stepped import Core  # noqa: E402
from penstock.errors import ConfigError, EngineDeadError, PenstockError, RequestError  # noqa: E402
from penstock.handover_config import Role  # noqa: E402
from penstock.interface.executor import Executor, failure_of  # noqa: E402
from penstock.interface.messages import (  # noqa: E402
    Abort,
    EngineRequest,
    FinishReason,
    SequenceUpdate,
)
from penstock.pooling.params import PoolingParams  # noqa: E402
from penstock.processes.family import end_with_parent  # noqa: E402
from penstock.processes.frames import WireError  # noqa: E402
from penstock.processes.wake import Wake  # noqa: E402
from penstock.resolved_config import ResolvedConfig  # noqa: E402
from penstock.sampling.params import SamplingParams  # noqa: E402

_WARM_UP_ID = "penstock-warm-up"
_TELL_S = 0.1


@dataclass(frozen=True)
class LoadedCore:
    core: Core
    model: ModelFacts
    config: ResolvedConfig | None = None
    failure: Callable[[], PenstockError | None] = lambda: None
    """Returns why the core cannot go on, where that is known though no step runs. Called by another
    thread, and does not know the core."""
    wake: Wake | None = None
    """Set when the core has work that no message brought; None where there is none such."""


class Startup:
    """What a core's loader reports while it works."""

    def __init__(
        self, ledger: Ledger, send: Callable[[FromEngine], None], role: Role | None = None
    ) -> None:
        self.ledger = ledger
        self.role = role
        """Whether prompts are computed apart, and by whom."""
        self._send = send
        self._phase = ""
        self._next_told = 0.0

    def located(self, tokenizer_path: str) -> None:
        """The tokenizer is in this folder: the front end may load it now."""
        self._send(Located(tokenizer_path))

    def loading(self, phase: str, done: float, num_bytes: int) -> None:
        """The ProgressCallback that tells the front end of new phases, and else ten times a second
        at most."""
        now = time.monotonic()
        if phase != self._phase or now >= self._next_told:
            self._phase, self._next_told = phase, now + _TELL_S
            self._send(Loading(phase, done, num_bytes))


CoreLoader = Callable[[EngineConfig, Startup], LoadedCore]


class EngineLoop:
    """Receives messages, steps the core and sends the results, until it is shut down."""

    def __init__(self, loaded: LoadedCore, frames: FrameSocket) -> None:
        self._core = loaded.core
        self._failure = loaded.failure
        self._wake = loaded.wake
        self._frames = frames
        self._meter = StepMeter()
        self._epoch = os.urandom(8).hex()

    def run(self) -> None:
        """Returns after Shutdown, when the front end is gone, and when the core was found to have
        failed, of which the front end has been told."""
        with _heart(self._meter, self._frames, self._failure):
            self._loop()

    def _loop(self) -> None:
        while True:
            # Never wait while there is work: arrivals join the very next step.
            messages = self._frames.receive(not self._core.has_work, self._wake)
            if messages is None:
                return
            for message in messages:
                if isinstance(message, Shutdown):
                    return
                self._handle(message)
            if self._core.has_work:
                self._send_updates(self._step())

    def _step(self) -> list[SequenceUpdate]:
        before = self._core.tokens_computed
        self._meter.begin()
        updates = self._core.step()
        self._meter.end(self._core.tokens_computed - before)
        return updates

    def _handle(self, message: object) -> None:
        match message:
            case EngineRequest():
                try:
                    self._core.add_request(message)
                except RequestError as error:
                    self._send(Refused(message.request_id, str(error), error.param))
            case Abort():
                self._send_updates(self._core.abort(message.request_ids, message.index))
            case StatsQuery():
                stats = self._meter.added_to(self._core.stats())
                self._send(StatsReply(message.query_id, stats))
            case CacheQuery():
                self._send(self._cache_reply(message))
            case ResetCache():
                self._send(Done(message.query_id, _trouble(self._core.reset_prefix_cache)))
            case LoadAdapter():
                self._send(_loaded(self._core, message))
            case DropAdapter():
                self._core.drop_adapter(message.digest)
                self._send(Done(message.query_id))
            case CheckIntegrity():
                self._send(Done(message.query_id, _trouble(self._core.check_integrity)))
            case _:
                raise WireError(f"a {type(message).__name__} message came out of turn")

    def _cache_reply(self, query: CacheQuery) -> CacheReply:
        position = query.position if query.epoch == self._epoch else None
        changes = self._core.cache_changes(position)
        return CacheReply(
            query_id=query.query_id,
            epoch=self._epoch,
            since=changes.since,
            until=changes.until,
            added=b"".join(changes.added),
            removed=b"".join(changes.removed),
        )

    def _send_updates(self, updates: list[SequenceUpdate]) -> None:
        if not updates:
            return
        frames, failed = encode_updates(updates)
        for frame in frames:
            self._frames.send(frame)
        for update, error in failed:
            self._core.abort([update.request_id])
            self._send_updates(
                [
                    SequenceUpdate(
                        request_id=update.request_id,
                        index=update.index,
                        token_ids=[],
                        finish_reason=FinishReason.ERROR,
                        error=str(error),
                    )
                ]
            )

    def _send(self, message: FromEngine) -> None:
        self._frames.send(encode_frame(message))


_LAST_BEAT_S: Final = 2.0
"""Seconds for a sign of life that is being sent when the loop ends: a front end that reads nothing
holds no process up for longer."""


@contextlib.contextmanager
def _heart(
    meter: StepMeter, frames: FrameSocket, failure: Callable[[], PenstockError | None]
) -> Iterator[None]:
    """Send a sign of life every BEAT_S seconds, with how long the current step has run. Between
    steps, end the loop if the core has failed; a step would tell by itself.

    Run by a thread of its own: so the front end can tell a process that was stopped or swapped
    out, which sends nothing, from a step that does not end. It knows the core by ``failure``, and
    what a thread refers to that outlives the interpreter is never collected, of which nanobind
    would tell: the end is waited for.
    """
    stop = threading.Event()

    def beat() -> None:
        with contextlib.suppress(OSError):  # the front end is gone, as the loop will see
            while not stop.wait(BEAT_S):
                seconds, error = meter.seconds_in_step(), failure()
                if error is not None and seconds == 0:
                    frames.send(encode_frame(Fatal(type(error).__name__, str(error))))
                    frames.stop_receiving()
                    return
                frames.send(encode_frame(Beat(seconds)))

    thread = threading.Thread(target=beat, name="penstock-heart", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(_LAST_BEAT_S)


def _trouble(command: Callable[[], None]) -> str | None:
    """Carry out a command; return its error message, or None."""
    try:
        command()
    except (PenstockError, AssertionError) as error:
        return str(error) or type(error).__name__
    return None


def _loaded(core: Core, message: LoadAdapter) -> AdapterReply:
    """Load an adapter; between steps, which wait for it."""
    try:
        return AdapterReply(query_id=message.query_id, digest=core.load_adapter(message.path))
    except PenstockError as error:
        return AdapterReply(
            query_id=message.query_id, kind=type(error).__name__, message=str(error)
        )


def load_core(config: EngineConfig, startup: Startup) -> LoadedCore:
    """The real engine: resolve the options, load the model, bind it."""
    return load_core_around(config, startup, lambda executor: executor)


def load_core_around(
    config: EngineConfig, startup: Startup, around: Callable[[Executor], Executor]
) -> LoadedCore:
    """The real engine, on what ``around`` makes of its executor, which is to pass all steps on."""
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


def warm_up(core: Core, model: ModelFacts) -> None:
    """Generate one real token, or classify by one, so that ready means that this machine can."""
    core.add_request(
        EngineRequest(
            request_id=_WARM_UP_ID,
            prompt_token_ids=[0],
            params=SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True),
            pooling=None if model.labels is None else PoolingParams(task="classify"),
        )
    )
    while core.has_work:
        for update in core.step():
            if update.error is not None:
                raise EngineDeadError(f"the first token could not be generated: {update.error}")


def import_loader(name: str) -> CoreLoader:
    """The function named ``module:function``."""
    module, colon, function = name.partition(":")
    try:
        loader = getattr(importlib.import_module(module), function) if colon else None
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"the engine core {name!r} cannot be imported: {error}") from error
    if not callable(loader):
        raise ConfigError(f"the engine core must be given as module:function, not {name!r}")
    return loader  # type: ignore[no-any-return]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="penstock.engine.ipc.child", description=__doc__)
    parser.add_argument("--fd", type=int, required=True, help="the inherited socket")
    parser.add_argument("--core", required=True, help="module:function that loads the core")
    options = parser.parse_args(arguments)
    # Ctrl-C reaches the whole terminal group, and a process manager may tell every process to
    # end; only the front end decides what that means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    end_with_parent(os.getppid())  # a parent that has ended by now has closed the socket
    with socket.socket(fileno=options.fd) as sock:
        frames = FrameSocket(sock)
        try:
            with logging_to(frames):
                return _run(frames, options.core)
        except PenstockError as error:
            fatal = Fatal(type(error).__name__, str(error))
        except (BrokenPipeError, ConnectionResetError):
            return 0  # the front end is gone: there is nobody to report to
        except BaseException:
            fatal = Fatal(EngineDeadError.__name__, f"the engine failed:\n{traceback.format_exc()}")
        with contextlib.suppress(OSError):
            frames.send(encode_frame(fatal))
        return 1


def _run(frames: FrameSocket, loader: str) -> int:
    messages = frames.receive(wait=True)
    if messages is None:
        return 0
    if len(messages) != 1 or not isinstance(messages[0], Start):
        raise WireError("the first message must be one Start")
    start = messages[0]
    ledger = Ledger(start.spawned_at)
    ledger.mark("engine python", _ENTERED_AT - start.spawned_at)
    load = import_loader(loader)
    startup = Startup(ledger, lambda m: frames.send(encode_frame(m)), start.role)
    loaded = load(start.config, startup)
    startup.loading("the first token", 0.0, 0)
    warm_up(loaded.core, loaded.model)
    ledger.mark("first token")
    # What is loaded lives until the end: keep the collector from walking it in every full pass.
    gc.collect()
    gc.freeze()
    ready = Ready(
        model=loaded.model, phases=ledger.phases, notes=ledger.notes, config=loaded.config
    )
    try:
        frames.send(encode_frame(ready))
        EngineLoop(loaded, frames).run()
    finally:
        loaded.core.close()
        # What is in cycles must be collected before the process ends: of native objects that they
        # hold, nanobind would print that they leaked.
        gc.unfreeze()
    return 0


if __name__ == "__main__":
    sys.exit(main())
