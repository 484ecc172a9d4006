"""What stands before the arguments of a call whose name comes first."""

from __future__ import annotations

import re
from functools import cache

from penstock.parsing.styles import ToolStyle

MAX_NAME = 64
"""Characters in a tool's name, as in OpenAI's API."""


@cache
def head_pattern(style: ToolStyle) -> re.Pattern[str]:
    """Matches what follows the opening of a call, up to the ``{`` of its arguments; the group
    ``name`` is the name. Space between its parts may be missing, and some may be added."""
    if style.arguments_mark:
        after = rf"\s*(?:\[CALL_ID\][A-Za-z0-9]{{0,64}})?\s*(?:{re.escape(style.arguments_mark)})?"
    else:
        after = _pieces(style.after_name)
    number = r"(?::\d{1,9})?" if style.ids == "numbered" else ""
    name = rf"\s*(?P<name>[A-Za-z0-9_.-]{{1,{MAX_NAME}}})"
    return re.compile(rf"{_pieces(style.before_name)}{name}{number}{after}\s*(?=\{{)")


@cache
def longest_head(style: ToolStyle) -> int:
    """Longer text without a ``{`` is no head."""
    pieces = (*style.before_name, *style.after_name, style.arguments_mark, "[CALL_ID]")
    return 2 * MAX_NAME + sum(map(len, pieces)) + 16


def _pieces(pieces: tuple[str, ...]) -> str:
    return "".join(rf"\s*{re.escape(piece.strip())}" for piece in pieces)
