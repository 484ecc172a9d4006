"""The engine's own process: load a core, report ready, then step while there is work.

Started by :class:`penstock.engine.ipc.spawn.EngineChild` as
``python -m penstock.engine.ipc.child --fd N --core module:function`` (``core_loader.py``).
"""

from __future__ import annotations

import time

_ENTERED_AT = time.monotonic()  # before the imports below, which the ledger counts apart

import argparse  # noqa: E402
import contextlib  # noqa: E402
import gc  # noqa: E402
import os  # noqa: E402
import signal  # noqa: E402
import socket  # noqa: E402
import sys  # noqa: E402
import traceback  # noqa: E402
from collections.abc import Sequence  # noqa: E402

from penstock.engine.ipc.core_loader import Startup, import_loader  # noqa: E402
from penstock.engine.ipc.log_lines import logging_to  # noqa: E402
from penstock.engine.ipc.loop import EngineLoop  # noqa: E402
from penstock.engine.ipc.startup import Ledger  # noqa: E402
from penstock.engine.ipc.wire import (  # noqa: E402
    Fatal,
    FrameSocket,
    ModelFacts,
    Ready,
    Start,
    encode_frame,
)
from penstock.engine.stepped import Core  # noqa: E402
from penstock.errors import EngineDeadError, PenstockError  # noqa: E402
from penstock.interface.messages import EngineRequest  # noqa: E402
from penstock.pooling.params import PoolingParams  # noqa: E402
from penstock.processes.family import end_with_parent  # noqa: E402
from penstock.processes.frames import WireError  # noqa: E402
from penstock.sampling.params import SamplingParams  # noqa: E402

_WARM_UP_ID = "penstock-warm-up"


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


def warm_up(core: Core, model: ModelFacts) -> None:
    """Generate one token, or classify a prompt of one: Ready is sent only if that works here."""
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


if __name__ == "__main__":
    sys.exit(main())
