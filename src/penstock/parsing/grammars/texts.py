"""Rules of texts that are written without quotes, up to a mark."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from penstock.parsing.grammars.marks import Marks, quoted
from penstock.parsing.grammars.schemas import count_of


def text_rules(
    rule: str, schema: Mapping[str, Any], opening: str, closing: str, marks: Marks
) -> list[str]:
    """The rule of a text between ``opening``, in the grammar's notation, and the mark ``closing``,
    with the rules that it needs. The text is bound by its length, pattern and choices."""
    choices = [schema["const"]] if "const" in schema else schema.get("enum")
    if choices is not None:
        some = " | ".join(map(json.dumps, choices))
        return [f"{rule}: {opening} ({some}) {marks.spelled(closing)}"]
    least, most = count_of(schema, "minLength") or 0, count_of(schema, "maxLength")
    length = f"{{{least},{'' if most is None else most}}}"
    pattern = schema.get("pattern")
    terminal = f"{rule}_TEXT".upper()
    mark = closing.strip()
    before, _ = closing.split(mark)
    alone = marks.are_tokens(mark)
    behind = quoted(before if alone else closing)
    text = f"/(?s:.{length}){behind}/"
    if isinstance(pattern, str):
        text += f" & /{_searched(pattern)}{behind}/"
    if alone:
        closed = marks.spelled(closing.removeprefix(before))
        return [f"{rule}: {opening} {terminal} {closed}", f"{terminal}: {text}"]
    end = quoted(mark)
    # A text is read up to the first mark of its end, so that it must be the only one.
    return [
        f"{rule}: {opening} {rule}_text",
        f"{rule}_text[lazy]: {terminal}",
        f"{terminal}: {text} & ~/(?s:.*){end}(?s:.*){end}(?s:.*)/",
    ]


def _searched(pattern: str) -> str:
    """``pattern``, which may be found anywhere, for all of a text."""
    begin = "" if pattern.startswith("^") else "(?s:.*)"
    end = "" if re.search(r"(?<!\\)(\\\\)*\$$", pattern) else "(?s:.*)"
    inner = pattern.removeprefix("^")
    inner = inner.removesuffix("$") if not end else inner
    return f"{begin}(?:{inner}){end}".replace("/", r"\/").replace("\\\\/", r"\/")
