"""langchain-ollama: chats, prompts, streams, tools, structured output, embeddings."""

from __future__ import annotations

import asyncio
from typing import Any

from checks import MODEL, TOKENS, TOOL, URL, Trip, attempt
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_ollama import ChatOllama, OllamaEmbeddings, OllamaLLM

HOST = URL.removesuffix("/v1")
HI = HumanMessage("import os")


def chat(**fields: Any) -> Any:
    fields = {"num_predict": TOKENS, "temperature": 0, "seed": 1, **fields}
    return ChatOllama(model=MODEL, base_url=HOST, **fields)


def two_turns() -> None:
    model = chat(validate_model_on_init=True)
    said = model.invoke([HI])
    assert said.content
    assert said.usage_metadata["output_tokens"] == TOKENS
    assert model.invoke([HI, said, HI]).content


def streams() -> None:
    parts = list(chat().stream([HI]))
    assert "".join(part.text for part in parts) == chat().invoke([HI]).text
    whole = sum(parts[1:], parts[0])
    assert whole.response_metadata["done_reason"] == "length"

    async def main() -> str:
        return "".join([part.text async for part in chat().astream([HI])])

    assert asyncio.run(main()) == chat().invoke([HI]).text


def options() -> None:
    """All that the client has an argument for and that turns nothing on which is not there."""
    model = chat(
        mirostat=0, num_ctx=512, num_gpu=0, num_thread=2, repeat_last_n=-1, repeat_penalty=1.1,
        tfs_z=1.0, top_k=20, top_p=0.9, keep_alive="5m", stop=["never said"], reasoning=False,
    )  # fmt: skip
    assert model.invoke([HI]).content


def tools() -> None:
    """Nothing can force a call in this dialect: one is sent back as if the model had made it."""
    model = chat().bind_tools([TOOL])
    call = {"name": "book_trip", "args": {"city": "Oslo", "days": 2}, "id": "a"}
    turns = [HI, AIMessage("", tool_calls=[call]), ToolMessage("booked", tool_call_id="a")]
    assert model.invoke(turns) is not None


def structured(method: str) -> None:
    made = chat(num_predict=200).with_structured_output(Trip, method=method, include_raw=True)
    answer = made.invoke([HI])
    assert method == "json_mode" or isinstance(answer["parsed"], Trip), answer["parsing_error"]


def prompts() -> None:
    model = OllamaLLM(model=MODEL, base_url=HOST, num_predict=TOKENS, temperature=0)
    assert "".join(model.stream("import os")) == model.invoke("import os") != ""


def embeddings() -> None:
    model = OllamaEmbeddings(model=MODEL, base_url=HOST)
    one, two = model.embed_documents(["import os", "import sys"])
    assert one == model.embed_query("import os") != two


def logprobs() -> None:
    said = chat(logprobs=True, top_logprobs=2).invoke([HI])
    told = said.response_metadata.get("logprobs")
    assert told is None or len(told) == TOKENS


attempt("two turns, the model found by its name", two_turns)
attempt("stream, asynchronous too", streams)
attempt("options", options)
attempt("tools", tools)
attempt("structured output, json_schema", lambda: structured("json_schema"))
attempt("structured output, json_mode", lambda: structured("json_mode"))
attempt("log-probabilities", logprobs)
attempt("completions", prompts)
attempt("embeddings", embeddings)
