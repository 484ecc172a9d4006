"""Observed requests as the turns of conversations."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from penstock.workload.requests import ObservedRequests
from penstock.workload.sharing import Sharing
from penstock.workload.trace_line import TraceLine


def as_conversations(lines: Sequence[TraceLine]) -> list[TraceLine]:
    """The lines of an observed trace, those of requests that continue an earlier one as its turns.

    Such a line has the tokens that it adds and no blocks, and follows its ``after`` by ``delay``.
    All lines must have times and blocks; raises ConfigError as :meth:`ObservedRequests.of_trace`.
    """
    lines = sorted(lines, key=lambda line: line.timestamp or 0.0)
    sharing = Sharing.of(ObservedRequests.of_trace(lines))
    parents, roots, pauses = (
        column.tolist() for column in (sharing.parent, sharing.root, sharing.pause_s)
    )
    continued = set(parents)
    found = []
    for i, (line, parent) in enumerate(zip(lines, parents, strict=True)):
        if parent >= 0:
            before = lines[parent]
            line = msgspec.structs.replace(
                line,
                input_length=max(1, line.input_length - before.input_length - before.output_length),
                hash_ids=None,
                answer_ids=None,
                session_id=roots[i],
                id=i,
                after=[parent],
                delay=round(max(pauses[i], 0.0) * 1e3, 3),
            )
        elif i in continued:
            line = msgspec.structs.replace(line, session_id=i, id=i)
        found.append(line)
    return found
