"""Requests that would blow up the server: each costs nothing but itself."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from support import byte_tokenizer, chains, sandbox_processes
from support.http_client import Server, running

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
RESPONSES = "/v1/responses"
PATIENCE_S = 200.0
"""Each of many bombs takes seconds of a processor before it ends."""

BOMBS = {
    "loops": "{% for a in 'x' * 9999 %}{% for b in 'x' * 9999 %}{% for c in 'x' * 9999 %}"
    "{% endfor %}{% endfor %}{% endfor %}",
    "replace": "{{ ('x' * 1000000) | replace('x', 'y' * 1000000) }}",
    "join": "{{ (['x' * 100000] * 1000000) | join('y' * 100000) }}",
    "indent": "{{ [[1]] | tojson(indent=2000000000) }}",
    "wordwrap": "{{ ('x ' * 10000000) | wordwrap(1, wrapstring='y' * 100000) }}",
    "slice": "{{ 'x' | slice(2000000000) | list | length }}",
    "to_bytes": "{{ (1).to_bytes(20000000000, 'big') | length }}",
    "ljust": "{{ (65).to_bytes(1, 'big').ljust(20000000000) | length }}",
    "batch": "{{ [1] | batch(20000000000, 0) | list | length }}",
    "lipsum": "{{ lipsum(n=1000000) }}",
}
_CASES = [f"{{% if m.content == '{name}' %}}{bomb}{{% endif %}}" for name, bomb in BOMBS.items()]
TEMPLATE = "{% for m in messages %}" + "".join(_CASES) + "{{ m.content }}{% endfor %}"


@pytest.fixture(scope="module")
def bomb_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = byte_tokenizer.write(tmp_path_factory.mktemp("bombs"))
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config["chat_template"] = TEMPLATE
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    with running(folder, 1) as server:
        yield server


def chat(content: str, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": content}]
    return {"model": "fake", "messages": messages, "max_tokens": 3, **fields}


@pytest.mark.slow
def test_template_bombs_beside_a_plain_chat(bomb_server: Server) -> None:
    async def main() -> None:
        async with httpx.AsyncClient(base_url=bomb_server.url, timeout=PATIENCE_S) as client:

            async def send(content: str) -> httpx.Response:
                return await client.post(CHAT, json=chat(content))

            bombs = {name: asyncio.ensure_future(send(name)) for name in BOMBS}
            for _ in range(3):
                assert (await send("hello")).status_code == 200
            assert not all(bomb.done() for bomb in bombs.values())
            for name, bomb in bombs.items():
                answer = await bomb
                assert answer.status_code == 400, (name, answer.text)
                error = answer.json()["error"]
                assert error["param"] == "messages"
                assert "asked for too much" in error["message"], (name, error)
            assert (await send("hello")).status_code == 200

    asyncio.run(main())
    assert bomb_server.metric("worker_jobs_ended_total", cause="time") >= 1
    assert bomb_server.process.poll() is None


@pytest.mark.slow
@pytest.mark.thinned(2)
@pytest.mark.parametrize("factor", [1, 10])
def test_chains_of_references(tool_server: Server, factor: int) -> None:
    bodies: list[tuple[str, dict[str, Any]]] = []
    for spec in chains.specs(factor).values():
        if spec.kind == "lark":
            body = {"model": "fake", "prompt": "a", "guided_grammar": spec.text}
            bodies.append((COMPLETIONS, body))
            continue
        schema = json.loads(spec.text)
        shape = {"type": "json_schema", "json_schema": {"name": "it", "schema": schema}}
        bodies.append((CHAT, chat("a", response_format=shape)))
        schema = {"type": "object", "properties": {"a": {"$ref": "#/$defs/d0"}}} | schema
        del schema["$ref"]
        tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
        bodies.append((CHAT, chat("a", tools=[tool], tool_choice="required")))
    for path, body in bodies:
        answer = tool_server.http.post(path, json=body, timeout=PATIENCE_S)
        assert 400 <= answer.status_code < 500, answer.text
        if factor == 1:
            assert answer.status_code == 400
            message = answer.json()["error"]["message"]
            # The template shows tools to the model, whose context is short.
            assert "nested too deep" in message or ("tools" in body and "cannot fit" in message)
    assert tool_server.post(CHAT, chat("hello")).status_code == 200
    assert tool_server.process.poll() is None


LONG = "some words " * 12_000


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (COMPLETIONS, {"prompt": LONG}, "prompt"),
        (COMPLETIONS, {"prompt": ["a", LONG]}, "prompt[1]"),
        (CHAT, {"messages": [{"role": "user", "content": LONG}]}, "messages"),
        (RESPONSES, {"input": LONG}, None),
        ("/v1/embeddings", {"input": LONG}, "input"),
        ("/v1/embeddings", {"input": ["a", LONG]}, "input[1]"),
        ("/tokenize", {"prompt": LONG}, "prompt"),
        ("/tokenize", {"messages": [{"role": "user", "content": LONG}]}, "messages"),
    ],
)
def test_texts_that_cannot_fit(
    server: Server, path: str, fields: dict[str, Any], param: str | None
) -> None:
    answer = server.post(path, {"model": "fake", **fields})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert "132000 characters" in error["message"] or path in (CHAT, RESPONSES, "/tokenize")
    assert "(max_model_len, max_input_len)" in error["message"]
    assert "cannot fit" in error["message"]
    if param is not None:
        assert error["param"] == param


def test_a_client_that_leaves_frees_the_worker(bomb_server: Server) -> None:
    for _ in range(4):
        with pytest.raises(httpx.ReadTimeout):
            bomb_server.http.post(CHAT, json=chat("loops"), timeout=0.5)
    assert bomb_server.post(CHAT, chat("hello")).status_code == 200


def test_workers_that_are_killed_are_not_the_clients_fault(bomb_server: Server) -> None:
    async def main() -> None:
        async with httpx.AsyncClient(base_url=bomb_server.url, timeout=PATIENCE_S) as client:
            asked = asyncio.ensure_future(client.post(CHAT, json=chat("loops")))
            while not asked.done():
                for pid in sandbox_processes.servers(bomb_server.process.pid):
                    os.kill(pid, signal.SIGKILL)
                await asyncio.wait({asked}, timeout=0.1)
            answer = await asked
        assert answer.status_code == 503, answer.text
        assert answer.json()["error"]["code"] == "worker_unavailable"
        assert "retry-after" in answer.headers

    asyncio.run(main())
    assert bomb_server.post(CHAT, chat("hello")).status_code == 200


def test_a_text_that_makes_the_tokenizer_panic(tmp_path: Path) -> None:
    """The split expression of Qwen2, on more white space than it can look through."""
    folder = byte_tokenizer.write(tmp_path)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    byte_level = {**tokenizer["pre_tokenizer"], "use_regex": False}
    pattern = {"Regex": r"(?:a|aa)+b|\s+"}
    split = {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}
    tokenizer["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, byte_level]}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    with running(folder, 1, max_model_len=100_000) as server:
        for length in (60, 5000):
            body = {"model": "fake", "prompt": "a" * length, "max_tokens": 1}
            answer = server.post(COMPLETIONS, body)
            assert answer.status_code == 400, answer.text
            assert "cannot be tokenized" in answer.json()["error"]["message"]
        assert server.post(COMPLETIONS, {**body, "prompt": "ab"}).status_code == 200
