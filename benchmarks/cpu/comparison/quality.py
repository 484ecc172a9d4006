"""Perplexities of all engines of a comparison."""

from __future__ import annotations

from collections.abc import Sequence

from comparison.contender import Contender, make_room
from comparison.process import WorkerError
from comparison.results import Comparison, Quality
from comparison.text import Text


def score(contenders: Sequence[Contender], text: Text, comparison: Comparison) -> None:
    """How well each engine predicts ``text``; what is not told is written down with the reason."""
    for contender in contenders:
        if contender.served:
            continue
        make_room(contenders, contender, [])
        engine, precision = contender.peer.name, contender.precision
        try:
            found = contender.perplexity(text)
        except WorkerError as error:
            comparison.leave_out(engine, precision, "perplexity", str(error))
        else:
            print(f"{contender.name}: perplexity {found:.4f}", flush=True)
            comparison.qualities.append(
                Quality(engine=engine, precision=precision, perplexity=found)
            )
        finally:
            contender.unload()
