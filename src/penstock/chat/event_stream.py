"""Reads server-sent events, the form in which OpenAI's API streams answers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

DONE = "[DONE]"


def event_data(lines: Iterable[bytes]) -> Iterator[str]:
    """The data of each event until ``[DONE]``, which is left out.

    Comments and other fields are passed over. An event that is cut off by the end is not given.
    """
    data: list[str] = []
    for raw in lines:
        line = raw.decode(errors="replace").rstrip("\r\n")
        if line.startswith("data:"):
            data.append(line[5:].removeprefix(" "))
        elif not line and data:
            text = "\n".join(data)
            data.clear()
            if text == DONE:
                return
            yield text
