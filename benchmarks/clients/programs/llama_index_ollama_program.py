"""llama-index through its Ollama integrations: chats, streams, tools, structured output,
embeddings."""

from __future__ import annotations

import asyncio
from typing import Any

from checks import MODEL, TOKENS, URL, Trip, attempt
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.embeddings.ollama import OllamaEmbedding
from llama_index.llms.ollama import Ollama

HOST = URL.removesuffix("/v1")
HI = ChatMessage(role="user", content="import os")


def model(predict: int = TOKENS, **fields: Any) -> Any:
    options = {"num_predict": predict, "seed": 1}
    return Ollama(
        model=MODEL, base_url=HOST, request_timeout=120.0, temperature=0, context_window=512,
        additional_kwargs=options, **fields,
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

    async def main() -> str:
        stream = await model().astream_chat([HI])
        return "".join([part.delta or "" async for part in stream])

    assert asyncio.run(main()) == text


def completions() -> None:
    whole = model().complete("import os").text
    assert whole == "".join(part.delta or "" for part in model().stream_complete("import os"))


def tools() -> None:
    tool = FunctionTool.from_defaults(book_trip)
    answer = model().chat_with_tools([tool], chat_history=[HI])
    assert model().get_tool_calls_from_response(answer, error_on_no_tool_call=False) is not None


def structured() -> None:
    made = model(200).as_structured_llm(Trip)
    assert isinstance(made.chat([HI]).raw, Trip)


def embeddings() -> None:
    embed = OllamaEmbedding(model_name=MODEL, base_url=HOST)
    one, two = embed.get_text_embedding_batch(["import os", "import sys"])
    assert one == embed.get_text_embedding("import os") != two


attempt("two turns", two_turns)
attempt("stream, asynchronous too", streams)
attempt("completions, streamed", completions)
attempt("tools", tools)
attempt("structured output", structured)
attempt("json_mode", lambda: model(json_mode=True).chat([HI]))
attempt("thinking", lambda: model(thinking=True).chat([HI]))
attempt("embeddings", embeddings)
