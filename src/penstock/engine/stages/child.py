"""The process of a stage of this machine, which the engine starts.

Started by :class:`penstock.engine.stages.places.NearStage` as
``python -m penstock.engine.stages.child --fd N``.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Sequence

from penstock.engine.stages.serving import serve_engine
from penstock.engine.stages.wire import TO_STAGE, JoinPipeline, ToStage
from penstock.peers.channel import Channel, EndedError
from penstock.processes.family import end_with_parent


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="penstock.engine.stages.child", description=__doc__)
    parser.add_argument("--fd", type=int, required=True, help="the inherited socket")
    options = parser.parse_args(arguments)
    # As in the engine's process: what ends the engine ends its stages, and nothing else does.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    end_with_parent(os.getppid())
    with socket.socket(fileno=options.fd) as sock:
        channel: Channel[ToStage] = Channel(sock, TO_STAGE)
        with contextlib.suppress(EndedError):  # the engine has ended
            join = channel.receive().message
            assert isinstance(join, JoinPipeline)
            serve_engine(channel, join)
    return 0


if __name__ == "__main__":
    sys.exit(main())
