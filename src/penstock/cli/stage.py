"""Wait for an engine on another host, and run a part of its model's layers.

  penstock stage path/to/model --port 50052
  penstock serve path/to/model --pipeline-stages 127.0.0.1:50052

The first command has the first half of the layers, the second all else. The engine says what of
the model a stage has, and in which types; the stage has the same model and version of Penstock,
or it refuses. It serves one engine after the other until Ctrl-C. Other hosts than this are served
only with a secret that both know: see --pipeline-secret-file and docs/parallel.md.
"""

from __future__ import annotations

import argparse
import signal
import sys
from typing import NoReturn

from penstock.cli.options import add_engine_arguments, engine_config
from penstock.config import EngineConfig

_OPTIONS = ("revision", "backend", "threads", "artifact", "artifact_dir", "pipeline_secret_file")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_engine_arguments(
        parser,
        skip=set(EngineConfig.__struct_fields__).difference(_OPTIONS),
        model_help="The model that the engine serves: a checkpoint folder, a hub id, or nothing "
        "for the demo model that ships with Penstock.",
    )
    group = parser.add_argument_group("options of the stage")
    group.add_argument(
        "--host",
        default="127.0.0.1",
        help="the address to listen on (default: 127.0.0.1); any other needs a secret",
    )
    group.add_argument(
        "--port", type=int, default=50052, help="the port (default: 50052; 0 picks a free one)"
    )


def run(args: argparse.Namespace) -> int:
    from penstock.engine.loader import open_model
    from penstock.engine.stages.listening import StageServer
    from penstock.engine.stages.options import StageOptions
    from penstock.engine.stages.wire import SECRET
    from penstock.errors import ConfigError
    from penstock.peers.address import Address
    from penstock.peers.listener import Listener

    config = engine_config(args)
    secret, address = SECRET.read(config.pipeline_secret_file), Address(args.host, args.port)
    SECRET.check(secret, [address], "--host")
    if not 0 <= args.port < 65536:
        raise ConfigError(f"--port must be 0 to 65535, not {args.port}")
    open_model(config)  # what is wrong with it is said now
    options = StageOptions(
        model=config.model,
        revision=config.revision,
        backend=None if config.backend == "auto" else config.backend,
        threads=config.threads,
        artifact_dir=_artifact_dir(config),
        secret=secret,
    )
    signal.signal(signal.SIGTERM, _end)
    listener = Listener(address, "--host")
    server = StageServer(listener, options, _say)
    print(f"waiting for an engine with --pipeline-stages {listener.address}", flush=True)
    server.run()
    return 0


def _artifact_dir(config: EngineConfig) -> str | None:
    """Where this host keeps packed weights; engines say whether any are kept. Raises
    ConfigError."""
    from penstock.artifact.root import asked_root
    from penstock.errors import ConfigError

    if config.artifact:
        return asked_root(config.artifact_dir)[0]
    if config.artifact_dir is not None:
        raise ConfigError(
            f"artifact_dir {config.artifact_dir} has no effect, since artifacts are off; leave it "
            "out"
        )
    return None


def _end(number: int, frame: object) -> NoReturn:
    """End by a service manager's signal: whoever is served is told, as with Ctrl-C."""
    _say("ended by SIGTERM")
    raise SystemExit(0)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
