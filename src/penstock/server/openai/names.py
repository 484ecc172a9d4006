"""What dialects call the fields of a chat."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Names:
    limit: str
    """The field that limits the output, in tokens."""
    format: str
    """The field with the required output format."""
    schema: str
    """The path of the format's JSON schema."""
    function: str = ""
    """Path from ``tools[0]`` to the object with the function's fields."""
    tools: str = "tools"
    choice: str = "tool_choice"
    """The field that says which tools may or must be called."""
    messages: str = "messages"
    parameters: str = "parameters"
    """The field of a function that has the schema of its arguments."""


CHAT = Names(
    "max_completion_tokens", "response_format", "response_format.json_schema.schema", ".function"
)
FUNCTIONS = Names(CHAT.limit, CHAT.format, CHAT.schema, tools="functions", choice="function_call")
"""Field names of a chat in the older form, with ``functions`` instead of ``tools``."""
RESPONSES = Names("max_output_tokens", "text.format", "text.format.schema", messages="input")
