"""llama-index: chats, completions, streams, tools, structured output."""

from __future__ import annotations

from typing import Any

from checks import KEY, MODEL, TOKENS, URL, Trip, attempt
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike

HI = ChatMessage(role="user", content="import os")


def model(**fields: Any) -> Any:
    fields = {"max_tokens": TOKENS, "temperature": 0, "is_chat_model": True, **fields}
    return OpenAILike(
        model=MODEL, api_base=URL, api_key=KEY, context_window=512, max_retries=0,
        is_function_calling_model=True, **fields,
    )  # fmt: skip


def book_trip(city: str, days: int) -> str:
    """Book a trip."""
    return "booked"


def two_turns() -> None:
    said = model().chat([HI]).message
    assert said.content
    assert model().chat([HI, said, HI]).message.content


def streams() -> None:
    text = "".join(part.delta or "" for part in model().stream_chat([HI]))
    assert text == model().chat([HI]).message.content


def tools() -> None:
    tool = FunctionTool.from_defaults(book_trip)
    llm = model(max_tokens=100)
    for parallel in (False, True):
        answer = llm.chat_with_tools(
            [tool], chat_history=[HI], tool_required=True, allow_parallel_tool_calls=parallel
        )
        calls = llm.get_tool_calls_from_response(answer, error_on_no_tool_call=False)
        assert [call.tool_name for call in calls][:1] == ["book_trip"] or parallel
    done = ChatMessage(
        role="tool", content="booked", additional_kwargs={"tool_call_id": calls[0].tool_id}
    )
    assert llm.chat_with_tools([tool], chat_history=[HI, answer.message, done])


def structured() -> None:
    made = model(max_tokens=200, should_use_structured_outputs=True).as_structured_llm(Trip)
    assert isinstance(made.chat([HI]).raw, Trip)


attempt("two turns", two_turns)
attempt("stream", streams)
attempt("completion", lambda: model(is_chat_model=False).complete("import os"))
attempt("tools, two turns", tools)
attempt("structured output", structured)
attempt("reasoning_effort", lambda: model(reasoning_effort="low").chat([HI]))
