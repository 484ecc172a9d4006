"""langchain-openai: chats, tools, structured output, both of OpenAI's APIs."""

from __future__ import annotations

from functools import partial
from typing import Any

from checks import KEY, MODEL, TOKENS, TOOL, URL, Trip, attempt, booked
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings

HI = HumanMessage("import os")


def chat(**fields: Any) -> Any:
    fields = {"max_tokens": TOKENS, "temperature": 0, **fields}
    return ChatOpenAI(model=MODEL, base_url=URL, api_key=KEY, max_retries=0, **fields)


def two_turns(**fields: Any) -> None:
    model = chat(**fields)
    said = model.invoke([HI])
    assert said.content
    assert model.invoke([HI, said, HI]).content


def streams(**fields: Any) -> None:
    model = chat(**fields)
    assert "".join(part.text for part in model.stream([HI])) == model.invoke([HI]).text


def tools(**fields: Any) -> None:
    model = chat(max_tokens=100, **fields)
    bound = model.bind_tools([TOOL], tool_choice="book_trip")
    said = bound.invoke([HI])
    booked(said.tool_calls[0]["args"])
    done = ToolMessage("booked", tool_call_id=said.tool_calls[0]["id"])
    assert model.bind_tools([TOOL]).invoke([HI, said, done]) is not None
    whole: Any = None
    for part in bound.stream([HI]):
        whole = part if whole is None else whole + part
    booked(whole.tool_calls[0]["args"])


def structured(method: str, **fields: Any) -> None:
    made = chat(max_tokens=200, **fields).with_structured_output(Trip, method=method)
    assert isinstance(made.invoke([HI]), Trip)


def reasoning() -> None:
    assert chat(reasoning_effort="low").invoke([HI]).content
    assert chat(use_responses_api=True, reasoning={"effort": "low", "summary": "auto"}).invoke([HI])


def hints() -> None:
    model = chat(service_tier="flex", store=True, metadata={"a": "b"}, verbosity="low")
    assert model.invoke([HI]).content


for name, fields in (("chat", {}), ("responses", {"use_responses_api": True})):
    attempt(f"{name}: two turns", partial(two_turns, **fields))
    attempt(f"{name}: stream", partial(streams, **fields))
    attempt(f"{name}: tools, two turns, streamed", partial(tools, **fields))
    for method in ("json_schema", "function_calling"):
        attempt(
            f"{name}: structured output, {method}",
            partial(structured, method, **fields),
        )
attempt("reasoning_effort, reasoning", reasoning)
attempt("hints", hints)
attempt(
    "completions",
    lambda: OpenAI(model=MODEL, base_url=URL, api_key=KEY, max_tokens=TOKENS).invoke("import os"),
)
attempt(
    "embeddings",
    lambda: OpenAIEmbeddings(
        model=MODEL, base_url=URL, api_key=KEY, check_embedding_ctx_length=False
    ).embed_documents(["import os", "import sys"]),
)
