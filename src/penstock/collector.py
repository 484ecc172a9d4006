"""The collector of cycles, which Python runs as objects are made."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Keep the collector from running within, and from ever looking at what was made there.

    Of modules, which live until the end, it finds nothing, and it took a fifth of the time in
    which they were imported. For commands and processes of our own: what belongs to the program
    that calls us stays as it is where the program has turned the collector off.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """Keep the collector from running within; afterwards it looks at everything, as before.

    For work that makes no cycles. What came before may have made some: an engine that was only
    planned holds native objects in one, of which nanobind would print at the end that they leaked
    if :func:`uncollected` had hidden them from the collector.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
