"""A process that writes to a store of blocks until it is killed.

Apart from its test, since the process imports this module by its name.
"""

from __future__ import annotations

import random
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path

from support.stored_blocks import SIZES, block, key, opened, same

BATCH = 6


def write_and_read(root: Path, limit: int, first: int, told: Connection) -> None:
    """Write new blocks for ever, in chains of :data:`BATCH`, and tell of each that is written."""
    store = opened(root, limit)
    rng = random.Random(first)
    told.send(first)
    for number in count(first, BATCH):
        numbers = range(number, number + BATCH)
        for group in range(len(SIZES)):
            store.write([block(each, group) for each in numbers])
        told.send(number + BATCH)
        back = [each for each in numbers if store.holds(key(each), 0)]
        store.use([key(each) for each in back], 0)
        assert same(store, back)
        if rng.random() < 0.3:
            store.refresh()
