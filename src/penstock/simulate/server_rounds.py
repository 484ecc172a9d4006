"""Loads a server in rounds: each has every load once, so that what drifts is in all of them alike.

Most loads are of requests at random times, as users send them: where others take the place of those
that end, many are sent in the very moment in which the server and its clients have most to do, and
one after the other finds all caches filled with what it needs. Neither is what a trace meets.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import median
from typing import Final

from penstock.bench.load.document import LoadedRun
from penstock.bench.progress import Progress
from penstock.simulate.others import Others
from penstock.simulate.recording import RecordedLoad, recorded
from penstock.simulate.server_loads import ServerLoad, alike, mixed
from penstock.simulate.setup import Setup

ROUNDS: Final = 5
"""Rounds of loads: medians over them do not know the one in which something else ran."""
_LEAST_ROUNDS: Final = 2
_BUDGET_S: Final = 110.0
"""After so many seconds no further round begins, but for the second."""
_AGAIN_S: Final = 120.0
"""What measuring disturbed loads once more may take."""
MOST_OTHERS: Final = 0.1
"""Processors that others may take before a load is disturbed."""
_CLOSED: Final = ((1, 64, 96), (24, 400, 16))
"""Open requests, prompt and output tokens of loads without pauses: one that decodes, and prompts
that fill steps. The last such load takes all places, for mixed lengths."""
_PARTS: Final = (0.15, 0.3, 0.5, 0.7, 0.85)
"""Loads of requests that come at random times, as parts of what the server can do."""
_RANDOM_S, _LONGEST_S = 3.0, 10.0
_REQUESTS: Final = 8
"""Random loads are of so many requests at least, unless that takes longer; one of which not a
quarter comes by then says nothing, and is left out."""


def measured_rounds(
    url: str, setup: Setup, progress: Progress, rounds: int = ROUNDS
) -> list[RecordedLoad]:
    """Load the server at ``url``, which runs what ``setup`` says, for about two minutes; as many
    loads are of several rounds as fit into these. Raises PenstockError where it does not answer.

    What others have disturbed is measured once more behind the rounds, as long as that takes no
    more than another two minutes.
    """
    closed = closed_loads(setup)
    progress.begin("server", rounds * (len(closed) + len(_PARTS)), "loads")
    found: list[RecordedLoad] = []
    ends = time.monotonic() + _BUDGET_S
    for number in range(rounds):
        if number >= _LEAST_ROUNDS and time.monotonic() > ends:
            break
        for name, load in closed:
            found.append(_measured(name, replace(load, seed=number), number, url))
            progress.advance(1)
        for name, load in random_loads(setup, capacity(found)):
            found.append(_measured(name, replace(load, seed=number), number, url))
            progress.advance(1)
    return _again(found, url, time.monotonic() + _AGAIN_S)


def _again(found: Sequence[RecordedLoad], url: str, ends: float) -> list[RecordedLoad]:
    """Measure what was disturbed once more, until all of it was not, or no time is left. The less
    disturbed of both is kept."""
    kept = list(found)
    while time.monotonic() < ends:
        places = [place for place, each in enumerate(kept) if each.disturbed > MOST_OTHERS]
        if not places:
            break
        for place in places:
            if time.monotonic() > ends:
                break
            before = kept[place]
            again = _measured(before.name, before.load, before.round, url)
            kept[place] = min(before, again, key=lambda each: each.disturbed)
    return kept


def closed_loads(setup: Setup) -> list[tuple[str, ServerLoad]]:
    """Loads in which the next request takes the place of each that ends, with their names."""
    seqs, longest = setup.limits.max_num_seqs, setup.limits.lengths.max_model_len
    loads = [
        (
            f"{count} open, {prompt} to {output} tokens",
            ServerLoad.closed(
                setup, count, alike(min(prompt, longest // 4), min(output, longest // 4))
            ),
        )
        for count, prompt, output in _CLOSED
        if count <= seqs
    ]
    return [*loads, ("all places", ServerLoad.closed(setup, seqs, mixed(longest)))]


def capacity(found: Sequence[RecordedLoad]) -> float:
    """Requests a second that the server completed while all of its places were taken: the median
    over the rounds so far."""
    return median(
        max(len(each.requests), 1) / max(each.seconds, 1e-3)
        for each in found
        if each.name == "all places"
    )


def random_loads(setup: Setup, most: float) -> Iterator[tuple[str, ServerLoad]]:
    """Loads at parts of the ``most`` requests a second that the server can do, with their names."""
    longest = setup.limits.lengths.max_model_len
    for part in _PARTS:
        load = random_load(longest, part * most)
        if load is not None:
            yield f"random, {part:g} of capacity", load


def random_load(longest: int, rate: float) -> ServerLoad | None:
    """A load of ``rate`` requests a second; None where too few would come."""
    seconds = min(max(_RANDOM_S, _REQUESTS / rate), _LONGEST_S)
    if rate * seconds < _REQUESTS / 4:
        return None
    return ServerLoad(mixed(longest), rate=rate, duration_s=seconds)


def _measured(name: str, load: ServerLoad, number: int, url: str) -> RecordedLoad:
    before, begun = Others.now(), time.monotonic()
    run = load.measured(url)
    others, seconds = Others.now().since(before), time.monotonic() - begun
    return recorded(name, load, number, run, _began(run), others.each_second(seconds))


def _began(run: LoadedRun) -> float:
    """When a run began, by the clock that the engine notes its times by."""
    since = time.time() - datetime.datetime.fromisoformat(run.started).timestamp()
    return time.monotonic() - since
