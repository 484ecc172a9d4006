"""langchain-anthropic: chats, streams, tools, structured output, thinking, counts."""

from __future__ import annotations

from typing import Any

from checks import KEY, MODEL, TOKENS, TOOL, URL, Trip, Weekend, attempt, booked
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage

HI = HumanMessage("import os")


def chat(**fields: Any) -> Any:
    fields = {"max_tokens": TOKENS, "temperature": 0, **fields}
    host = URL.removesuffix("/v1")
    return ChatAnthropic(model=MODEL, base_url=host, api_key=KEY, max_retries=0, **fields)


def two_turns() -> None:
    model = chat()
    said = model.invoke([SystemMessage("Be brief."), HI])
    assert said.content
    assert said.usage_metadata["output_tokens"] > 0
    assert model.invoke([HI, said, HI]).content


def streams() -> None:
    model = chat()
    assert "".join(part.text for part in model.stream([HI])) == model.invoke([HI]).text


def tools() -> None:
    bound = chat(max_tokens=100).bind_tools([TOOL], tool_choice="book_trip")
    said = bound.invoke([HI])
    booked(said.tool_calls[0]["args"])
    done = ToolMessage("booked", tool_call_id=said.tool_calls[0]["id"])
    assert chat().bind_tools([TOOL]).invoke([HI, said, done]) is not None
    whole: Any = None
    for part in bound.stream([HI]):
        whole = part if whole is None else whole + part
    booked(whole.tool_calls[0]["args"])


def structured(method: str, kind: type) -> None:
    made = chat(max_tokens=200).with_structured_output(kind, method=method)
    assert isinstance(made.invoke([HI]), kind)


def thinking() -> None:
    """This client wants a temperature of 1 with it, and budgets below the limit of tokens."""
    model = chat(
        temperature=1, max_tokens=64, thinking={"type": "enabled", "budget_tokens": 32}, top_k=1
    )
    assert model.invoke([HI])


def hints() -> None:
    block = {"type": "text", "text": "import os", "cache_control": {"type": "ephemeral"}}
    assert chat(stop=["never said"]).invoke([HumanMessage([block])]).content


def counts() -> None:
    counted = chat().get_num_tokens_from_messages([HI])
    assert counted == chat().invoke([HI]).usage_metadata["input_tokens"]


attempt("two turns", two_turns)
attempt("stream", streams)
attempt("tools, two turns, streamed", tools)
attempt("structured output, function_calling", lambda: structured("function_calling", Trip))
attempt("structured output, json_schema", lambda: structured("json_schema", Weekend))
attempt("thinking", thinking)
attempt("hints, cache_control", hints)
attempt("tokens are counted as they are computed", counts)
