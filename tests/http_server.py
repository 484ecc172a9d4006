"""A server in its own process: all of it real but the engine's core, which is ``fake_core.py``.

Run as ``python -m http_server FOLDER MS`` it prints its port and the engine's process id. FOLDER
holds the tokenizer; a step takes MS milliseconds. ``http_client.py`` starts and asks it.
"""

from __future__ import annotations

import asyncio
import sys

from penstock.cli.serve import bind
from penstock.config import EngineConfig
from penstock.engine.async_llm import AsyncLLM
from penstock.engine.spawn import EngineChild
from penstock.server.app import ServerOptions
from penstock.server.run import RunOptions, serve

MAX_BODY_BYTES = 200_000
GRACE_S = 1


def main(folder: str, step_ms: str) -> None:
    config = EngineConfig(tokenizer=folder, seed=int(step_ms), served_model_name="fake")
    with bind("127.0.0.1", 0) as listener:
        child = EngineChild.spawn(config, "fake_core:load")
        port = listener.getsockname()[1]

        def announce(llm: AsyncLLM) -> None:
            print(port, child.process.pid, flush=True)

        options = RunOptions(GRACE_S, ServerOptions(MAX_BODY_BYTES))
        asyncio.run(serve(child, listener, options, announce))


if __name__ == "__main__":
    main(*sys.argv[1:])
