"""litellm by its providers of other dialects than OpenAI's chats: Ollama's, Anthropic's, Text
Generation Inference's, Triton's, OpenAI's completions, and llama-server's where it has one."""

from __future__ import annotations

from functools import partial
from typing import Any

import litellm
from checks import HI, KEY, MODEL, TOKENS, TOOL, URL, Trip, attempt, booked

HOST = URL.removesuffix("/v1")
CHATS = {
    "ollama": HOST,
    "ollama_chat": HOST,
    "anthropic": HOST,
    "text-completion-openai": URL,
    "huggingface": HOST,
    "triton": f"{HOST}/v2/models/{MODEL}/generate",
    "llamafile": URL,
    "lm_studio": URL,
}
GREEDY: dict[str, dict[str, float]] = {"triton": {}}
"""Providers that have no temperature, so that answers are drawn."""


def ask(provider: str, messages: Any = HI, **fields: Any) -> Any:
    greedy = GREEDY.get(provider, {"temperature": 0})
    return litellm.completion(
        model=f"{provider}/{MODEL}", api_base=CHATS[provider], api_key=KEY, messages=messages,
        **{"max_tokens": TOKENS, **greedy, **fields},
    )  # fmt: skip


def text_of(answer: Any) -> str:
    return str(answer.choices[0].message.content or "")


def two_turns(provider: str) -> None:
    said = ask(provider)
    assert text_of(said)
    assert text_of(ask(provider, [*HI, {"role": "assistant", "content": text_of(said)}, *HI]))
    assert provider == "triton" or said.usage.completion_tokens > 0  # Triton's answers tell none


def streams(provider: str) -> None:
    text = "".join(c.choices[0].delta.content or "" for c in ask(provider, stream=True))
    assert text
    assert text == text_of(ask(provider)) or provider in GREEDY


def structured(provider: str) -> None:
    answer = ask(provider, response_format=Trip, max_tokens=100)
    Trip.model_validate_json(text_of(answer))


def tools(provider: str) -> None:
    choice = {"type": "function", "function": {"name": "book_trip"}}
    fields = {"tools": [TOOL], "tool_choice": choice, "max_tokens": 100}
    said = ask(provider, **fields).choices[0].message
    booked(said.tool_calls[0].function.arguments)
    done = {"role": "tool", "tool_call_id": said.tool_calls[0].id, "content": "booked"}
    assert ask(provider, [*HI, said.model_dump(), done], tools=[TOOL]).choices
    parts = list(ask(provider, stream=True, **fields))
    message = litellm.stream_chunk_builder(parts).choices[0].message
    booked(message.tool_calls[0].function.arguments)


def tools_of_ollama() -> None:
    """Nothing can force a call in this dialect."""
    call = {
        "id": "a",
        "type": "function",
        "function": {"name": "book_trip", "arguments": '{"city": "Oslo", "days": 2}'},
    }
    turns = [
        *HI,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": "booked"},
    ]
    assert ask("ollama_chat", turns, tools=[TOOL]).choices


def completions(provider: str) -> None:
    answer = litellm.text_completion(
        model=f"{provider}/{MODEL}", api_base=CHATS[provider], api_key=KEY, prompt="import os",
        max_tokens=TOKENS, temperature=0,
    )  # fmt: skip
    assert answer.choices[0].text


def embeddings(provider: str) -> None:
    answer = litellm.embedding(
        model=f"{provider}/{MODEL}", api_base=HOST, input=["import os", "import sys"]
    )
    assert len(answer.data) == 2


def rerank() -> None:
    answer = litellm.rerank(
        model=f"hosted_vllm/{MODEL}", api_base=HOST, api_key=KEY, query="import os",
        documents=["import sys", "import os"],
    )  # fmt: skip
    assert answer.results[0]["index"] == 1


for name in CHATS:
    attempt(f"{name}: two turns", partial(two_turns, name))
    attempt(f"{name}: stream", partial(streams, name))
for name in ("ollama", "ollama_chat", "anthropic"):
    attempt(f"{name}: structured output", partial(structured, name))
attempt("anthropic: tools, two turns, streamed", partial(tools, "anthropic"))
attempt("ollama_chat: tools", tools_of_ollama)
attempt("text-completion-openai: completion", partial(completions, "text-completion-openai"))
attempt("ollama: completion", partial(completions, "ollama"))
attempt("ollama: embeddings", partial(embeddings, "ollama"))
attempt("hosted_vllm: rerank", rerank)
