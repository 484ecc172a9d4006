"""llamacpp-client, which knows llama-server's completions, and the rest of llama-server's own API
as its documentation has it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import requests
from checks import HI, MODEL, TOKENS, URL, Trip, attempt
from llamacpp_client import LlamaCppClient, LlamaCppServerAddress

HOST = URL.removesuffix("/v1")
ADDRESS, _, PORT = HOST.removeprefix("http://").partition(":")
client = LlamaCppClient([LlamaCppServerAddress(host=ADDRESS, port=int(PORT))])
PLAIN: dict[str, Any] = {"temperature": 0.0, "n_predict": TOKENS}


def post(path: str, **body: Any) -> Any:
    answer = requests.post(HOST + path, json=body, timeout=120)
    answer.raise_for_status()
    return answer.json()


def get(path: str) -> Any:
    answer = requests.get(HOST + path, timeout=120)
    answer.raise_for_status()
    return answer.json()


def whole() -> None:
    """With what the client sends where nothing is said: a penalty of the last 64 tokens, too."""
    said = client.new_completion("import os", **PLAIN)
    assert said.content
    assert said.tokens_predicted == TOKENS
    assert said.stop_type == "limit"


def streams() -> None:
    parts = list(client.new_stream_completion("import os", **PLAIN))
    said = client.new_completion("import os", **PLAIN)
    assert "".join(part.content for part in parts) == said.content
    assert parts[-1].stop


def options() -> None:
    schema = Trip.model_json_schema()
    said = client.completion("import os", json_schema=schema, n_predict=100, temperature=0)
    assert isinstance(said, dict)
    Trip.model_validate_json(said["content"])
    said = client.completion("import os", grammar='root ::= "yes" | "no"', n_predict=9, seed=3)
    assert isinstance(said, dict)
    assert said["content"] in ("yes", "no")
    assert said["stop_type"] == "eos"
    told = client.completion("import os", n_probs=2, return_tokens=True, cache_prompt=True, **PLAIN)
    assert isinstance(told, dict)
    assert len(told["completion_probabilities"]) == len(told["tokens"]) == TOKENS


def chats() -> None:
    said = client.v1_chat_completions(HI, model=MODEL, max_tokens=TOKENS, temperature=0)
    assert isinstance(said, dict)
    assert said["choices"][0]["message"]["content"]


def chunks() -> None:
    async def main() -> bytes:
        stream = client.async_completion("import os", stream=True, **PLAIN)
        return b"".join([chunk async for chunk in stream])

    events = [json.loads(line[6:]) for line in asyncio.run(main()).split(b"\n") if line]
    assert events[-1]["stop"] is True


def tokens() -> None:
    found = post("/tokenize", content="import os", add_special=False, with_pieces=True)["tokens"]
    assert "".join(each["piece"] for each in found) == "import os"
    ids = [each["id"] for each in found]
    assert post("/detokenize", tokens=ids)["content"] == "import os"
    by_ids = client.completion(ids, **PLAIN)
    assert isinstance(by_ids, dict)
    assert by_ids["tokens_evaluated"] == len(ids)


def state() -> None:
    props = get("/props")
    assert props["default_generation_settings"]["n_ctx"] > 0
    assert props["total_slots"] == len(get("/slots"))
    assert get("/health")["status"]
    assert [card["id"] for card in get("/v1/models")["data"]] == [MODEL]
    prompt = post("/apply-template", messages=HI)["prompt"]
    assert "import os" in prompt


def errors() -> None:
    bodies: list[dict[str, Any]] = [
        {"prompt": "a", "mirostat": 2},
        {"prompt": "a", "n_predict": "many"},
    ]
    for body in bodies:
        answer = requests.post(HOST + "/completion", json=body, timeout=120)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (400, 400)
        assert error["message"]


attempt("completion", whole)
attempt("completion, streamed", streams)
attempt("grammars, schemas, probabilities, tokens", options)
attempt("chat", chats)
attempt("events, asynchronous", chunks)
attempt("tokenize, detokenize, a prompt of tokens", tokens)
attempt("props, slots, health, models, apply-template", state)
attempt("errors are in llama-server's form", errors)
