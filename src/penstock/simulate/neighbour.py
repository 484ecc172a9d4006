"""The process of a neighbour: its options come as a line, and it computes until it is ended.

Started by :func:`penstock.simulate.neighbours.running`.
"""

from __future__ import annotations

import os
import sys

import msgspec

from penstock.config import EngineConfig
from penstock.processes.family import end_with_parent
from penstock.simulate.measured_steps import play_on
from penstock.simulate.neighbours import READY


def main() -> None:
    end_with_parent(os.getppid())
    config = msgspec.json.decode(sys.stdin.buffer.readline(), type=EngineConfig)

    def begun() -> None:
        sys.stdout.buffer.write(READY)
        sys.stdout.buffer.flush()

    play_on(config, begun)


if __name__ == "__main__":
    main()
