"""litellm: chats by two of its providers, responses, embeddings."""

from __future__ import annotations

from functools import partial
from typing import Any

import litellm
from checks import HI, KEY, MODEL, TOKENS, TOOL, URL, Trip, attempt, booked

PROVIDERS = ("openai", "hosted_vllm")


def ask(provider: str, messages: Any = HI, **fields: Any) -> Any:
    return litellm.completion(
        model=f"{provider}/{MODEL}", api_base=URL, api_key=KEY, messages=messages,
        temperature=0, **{"max_tokens": TOKENS, **fields},
    )  # fmt: skip


def two_turns(provider: str) -> None:
    said = ask(provider).choices[0].message
    assert said.content
    assert ask(provider, [*HI, said.model_dump(), *HI]).choices[0].message.content
    assert ask(provider, [*HI, said, *HI]).choices[0].message.content


def streams(provider: str) -> None:
    text = "".join(c.choices[0].delta.content or "" for c in ask(provider, stream=True))
    assert text == ask(provider).choices[0].message.content


def tools(provider: str) -> None:
    choice = {"type": "function", "function": {"name": "book_trip"}}
    # This provider takes additionalProperties out of schemas, and then a small model goes on.
    calm = {"extra_body": {"repetition_penalty": 1.5}} if provider == "hosted_vllm" else {}
    fields = {"tools": [TOOL], "tool_choice": choice, "max_tokens": 100, **calm}
    said = ask(provider, **fields).choices[0].message
    booked(said.tool_calls[0].function.arguments)
    done = {"role": "tool", "tool_call_id": said.tool_calls[0].id, "content": "booked"}
    assert ask(provider, [*HI, said.model_dump(), done], tools=[TOOL]).choices
    parts = list(ask(provider, stream=True, **fields))
    message = litellm.stream_chunk_builder(parts).choices[0].message
    booked(message.tool_calls[0].function.arguments)


def structured(provider: str) -> None:
    answer = ask(provider, response_format=Trip, max_tokens=100)
    Trip.model_validate_json(answer.choices[0].message.content)


def reasoning(provider: str) -> None:
    thinking = {"type": "enabled", "budget_tokens": 1024}
    assert ask(provider, reasoning_effort="low", allowed_openai_params=["reasoning_effort"]).choices
    assert ask(provider, extra_body={"thinking": thinking}).choices
    if provider == "hosted_vllm":
        assert ask(provider, thinking=thinking).choices


def hints(provider: str) -> None:
    cached = [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "import os", "cache_control": {"type": "ephemeral"}}
            ],
        }
    ]
    answer = ask(
        provider,
        cached,
        store=True,
        service_tier="flex",
        user="someone",
        metadata={"a": "b"},
        seed=1,
    )
    assert answer.choices


def responses() -> None:
    answer = litellm.responses(
        model=f"openai/{MODEL}", api_base=URL, api_key=KEY, input="import os",
        max_output_tokens=TOKENS, reasoning={"effort": "low"}, store=True,
    )  # fmt: skip
    assert answer.output


def embeddings() -> None:
    answer = litellm.embedding(
        model=f"openai/{MODEL}", api_base=URL, api_key=KEY, input=["import os", "import sys"]
    )
    assert len(answer.data) == 2


for name in PROVIDERS:
    attempt(f"{name}: two turns", partial(two_turns, name))
    attempt(f"{name}: stream", partial(streams, name))
    attempt(f"{name}: tools, two turns, streamed", partial(tools, name))
    attempt(f"{name}: structured output", partial(structured, name))
    attempt(f"{name}: reasoning_effort, thinking", partial(reasoning, name))
    attempt(f"{name}: hints, cache_control", partial(hints, name))
attempt("responses", responses)
attempt("embeddings", embeddings)
