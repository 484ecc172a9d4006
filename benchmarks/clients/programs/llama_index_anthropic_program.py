"""llama-index through its Anthropic integration: chats, streams, tools.

Its structured output leaves it to the model whether it calls the tool, which the demo model does
not.
"""

from __future__ import annotations

from typing import Any

from checks import KEY, TOKENS, URL, attempt
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.anthropic import Anthropic

HI = ChatMessage(role="user", content="import os")
MODEL = "claude-3-haiku-20240307"
"""The client knows the names of Anthropic's models alone, and the server is started with one."""


def model(**fields: Any) -> Any:
    fields = {"max_tokens": TOKENS, "temperature": 0, "max_retries": 0, **fields}
    return Anthropic(model=MODEL, base_url=URL.removesuffix("/v1"), api_key=KEY, **fields)


def book_trip(city: str, days: int) -> str:
    """Book a trip."""
    return "booked"


def two_turns() -> None:
    said = model().chat([ChatMessage(role="system", content="Be brief."), HI]).message
    assert said.content
    assert model().chat([HI, said, HI]).message.content


def streams() -> None:
    text = "".join(part.delta or "" for part in model().stream_chat([HI]))
    assert text == model().chat([HI]).message.content


def tools() -> None:
    tool = FunctionTool.from_defaults(book_trip)
    llm = model(max_tokens=100)
    answer = llm.chat_with_tools([tool], chat_history=[HI], tool_required=True)
    calls = llm.get_tool_calls_from_response(answer, error_on_no_tool_call=True)
    assert calls[0].tool_name == "book_trip"
    done = ChatMessage(
        role="tool", content="booked", additional_kwargs={"tool_call_id": calls[0].tool_id}
    )
    assert llm.chat_with_tools([tool], chat_history=[HI, answer.message, done])


attempt("two turns", two_turns)
attempt("stream", streams)
attempt("completion", lambda: model().complete("import os"))
attempt("tools, two turns", tools)
