"""Files of prompts, one JSON object on each line, in the forms that are in use."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from penstock.bench.load.turn import Conversation, Piece, Turn, chain
from penstock.bench.load.workload import RecordedWorkload
from penstock.errors import ConfigError

_TEXTS: Final = ("prompt", "question", "text", "text_input", "input")
_HINT: Final = (
    'each line needs one of "prompt", "question", "text" (a text), "turns" (a list of texts), '
    '"messages" or "conversations" (a chat)'
)


def read_prompt_file(path: Path, output_tokens: int | None) -> RecordedWorkload:
    """Prompts and chats of a ``.jsonl``. Raises ConfigError, which names the line, and OSError.

    ``output_tokens`` is how long answers are, where a line has no ``output_tokens``, ``max_tokens``
    or ``output_length`` of its own; None lets the server end them.
    """
    found = []
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                found.append(_conversation(f"{path}, line {number}", number, line, output_tokens))
    if not found:
        raise ConfigError(f"{path} holds no prompt; {_HINT}")
    return RecordedWorkload("prompts", tuple(found), (("file", path.name),))


def _conversation(where: str, number: int, line: bytes, output: int | None) -> Conversation:
    try:
        fields = msgspec.json.decode(line.removeprefix(b"\xef\xbb\xbf"), type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{where} is no JSON object: {error}; {_HINT}") from None
    output = _output(where, fields, output)
    texts = _texts(fields)
    if not texts or not all(isinstance(text, str) and text for text in texts):
        raise ConfigError(f"{where} has no prompt; {_HINT}")
    contents: list[tuple[Piece | str, ...]] = [(text,) for text in texts]
    kind = fields.get("category")
    pattern = kind if isinstance(kind, str) else None
    if len(contents) == 1:
        return Conversation(str(number), (Turn(contents[0], output, pattern=pattern),))
    count = len(contents)
    return Conversation(str(number), chain(contents, [output] * count, [0.0] * count, pattern))


def _texts(fields: Mapping[str, Any]) -> list[Any]:
    """What the user says; what an assistant said in a recorded chat is left out, since the server
    answers anew."""
    if isinstance(fields.get("turns"), list):
        return [*fields["turns"]]
    for name in ("messages", "conversations"):
        if isinstance(fields.get(name), list):
            said = [each for each in fields[name] if isinstance(each, dict)]
            return [
                each.get("content", each.get("value"))
                for each in said
                if each.get("role", each.get("from")) in ("user", "human")
            ]
    return [fields[name] for name in _TEXTS if name in fields][:1]


def _output(where: str, fields: Mapping[str, Any], default: int | None) -> int | None:
    for name in ("output_tokens", "max_tokens", "output_length"):
        if (value := fields.get(name)) is not None:
            if not isinstance(value, int) or value < 1:
                raise ConfigError(f"{where}: {name} is {value!r}; it must be a positive number")
            return value
    return default
