"""Outputs of models as the answer parser takes them apart, and the tool calls that tests write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.parsing.answer_parser import AnswerParser
from penstock.parsing.known_styles import REASONING_STYLES, TOOL_STYLES
from penstock.parsing.style import Start

TOOLS: dict[str, Any] = {
    "f": {},
    "get_weather": {
        "properties": {"city": {"type": "string"}, "days": {"type": "array"}, "note": {}}
    },
}
"""The request's tools: the JSON schema of each one's arguments."""
STYLES = {style.name: style for style in TOOL_STYLES}
REASONING = {style.name: style for style in REASONING_STYLES}
ARGUMENTS = '{"city": "Brno {", "days": [1, -2.5e3, null]}'
WEATHER = '{"name": "get_weather", "arguments": {"city": "Brno {", "days": [1, -2.5e3, null]}}'
F = '{"arguments": {}, "name": "f"}'
"""A call of each tool, in JSON."""

Answer = tuple[str, str, list[tuple[str, str]]]
"""Reasoning, content, and each call's name and arguments."""

ONE = [("get_weather", ARGUMENTS)]
TWO = [*ONE, ("f", "{}")]
"""These calls as the parser returns them."""


def parse(
    pieces: Sequence[str],
    style: str | None,
    *,
    eager: bool = False,
    single: bool = False,
    reasoning: str | None = None,
    inside: bool = False,
) -> Answer:
    """Parse an output that arrives in these pieces.

    ``style`` and ``reasoning`` name styles, or are None where the model has none; ``inside`` says
    that the prompt has begun the reasoning.
    """
    parser = AnswerParser(
        None if reasoning is None else REASONING[reasoning],
        Start.REASONING if inside else Start.BEGINNING,
        None if style is None else STYLES[style],
        TOOLS,
        eager=eager,
        single=single,
    )
    thought, content = "", ""
    calls: list[tuple[str, str]] = []
    for delta in [*map(parser.push, pieces), parser.finish()]:
        thought += delta.reasoning
        content += delta.content
        for call in delta.calls:
            if call.name is not None:
                assert call.index == len(calls)
                calls.append((call.name, call.arguments))
            else:
                assert call.index == len(calls) - 1
                calls[-1] = (calls[-1][0], calls[-1][1] + call.arguments)
    assert parser.num_calls == len(calls)
    return thought, content, calls
