"""What OpenAI's two APIs for chats call the fields that both have."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Names:
    limit: str
    """The longest answer, in tokens."""
    format: str
    """What the answer must be."""
    schema: str
    """Where its JSON schema is."""
    function: str = ""
    """What follows ``tools[0]`` before the field of a function."""
    tools: str = "tools"
    choice: str = "tool_choice"
    """Which of the tools may or must be called."""
    messages: str = "messages"


CHAT = Names(
    "max_completion_tokens", "response_format", "response_format.json_schema.schema", ".function"
)
FUNCTIONS = Names(CHAT.limit, CHAT.format, CHAT.schema, tools="functions", choice="function_call")
"""Of a chat in the form that it had before tools."""
RESPONSES = Names("max_output_tokens", "text.format", "text.format.schema", messages="input")
