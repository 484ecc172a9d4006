"""The server's OpenAPI document says what the server does."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from support.http_client import Server, running
from support.http_server import ADMIN_KEY
from support.json_schema import fault

PROMPT = {"model": "fake", "prompt": "abc", "max_tokens": 3}
MESSAGES = {"model": "fake", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}
RESPONSE = {
    "model": "fake",
    "input": [{"role": "user", "content": [{"type": "input_text", "text": "Hi"}]}],
    "max_output_tokens": 3,
    "include": ["message.output_text.logprobs"],
    "top_logprobs": 2,
}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
FORMAT = {"type": "json_schema", "json_schema": {"name": "it", "strict": True, "schema": SCHEMA}}
TOOL = {"name": "f", "parameters": SCHEMA, "strict": True}
UNUSED = {"tool_choice": "none", "parallel_tool_calls": False}
ASKED: list[tuple[str, str, Any]] = [
    ("post", "/v1/completions", PROMPT),
    ("post", "/v1/completions", {**PROMPT, "n": 2, "logprobs": 2, "echo": True}),
    ("post", "/v1/completions", {**PROMPT, "prompt_logprobs": 1, "best_of": 2, "stop": ["x"]}),
    ("post", "/v1/completions", {**PROMPT, "prompt": [[1, 2], [3]], "logit_bias": {"5": 1}}),
    ("post", "/v1/chat/completions", MESSAGES),
    ("post", "/v1/chat/completions", {**MESSAGES, "logprobs": True, "top_logprobs": 2}),
    ("post", "/v1/chat/completions", {**MESSAGES, "store": False, "tools": []}),
    (
        "post",
        "/v1/chat/completions",
        {**MESSAGES, "prediction": {"type": "content", "content": "Hi"}},
    ),
    ("post", "/v1/completions", {**PROMPT, "guided_json": SCHEMA}),
    ("post", "/v1/completions", {**PROMPT, "guided_choice": ["a", "b"]}),
    ("post", "/v1/completions", {**PROMPT, "structured_outputs": {"regex": "a+"}}),
    ("post", "/v1/chat/completions", {**MESSAGES, "response_format": FORMAT}),
    ("post", "/v1/chat/completions", {**MESSAGES, "guided_grammar": 'start: "a"'}),
    (
        "post",
        "/v1/chat/completions",
        {**MESSAGES, **UNUSED, "tools": [{"type": "function", "function": TOOL}]},
    ),
    ("post", "/v1/responses", {"model": "fake", "input": "Hi", "max_output_tokens": 3}),
    (
        "post",
        "/v1/responses",
        {**RESPONSE, **UNUSED, "tools": [{"type": "function", **TOOL}]}
        | {"text": {"format": {"type": "json_schema", **FORMAT["json_schema"]}}},  # type: ignore
    ),
    ("post", "/v1/responses", {**RESPONSE, "instructions": "Short.", "metadata": {"a": "b"}}),
    ("post", "/v1/messages", {**MESSAGES, "system": "Short.", "stop_sequences": ["x"]}),
    (
        "post",
        "/v1/messages",
        {
            **MESSAGES,
            "tools": [{"name": "f", "input_schema": SCHEMA}],
            "tool_choice": {"type": "none"},
            "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}},
        },
    ),
    ("post", "/api/generate", {"prompt": "a", "stream": False, "options": {"num_predict": 2}}),
    ("post", "/api/chat", {"messages": MESSAGES["messages"], "stream": False, "format": "json"}),
    ("post", "/api/embed", {"input": ["a", "b"]}),
    ("post", "/api/embeddings", {"prompt": "a"}),
    ("post", "/api/show", {"model": "fake"}),
    ("get", "/api/tags", None),
    ("get", "/api/ps", None),
    ("get", "/api/version", None),
    ("post", "/v2/models/{model}/generate", {"text_input": "a", "id": "x", "max_tokens": 2}),
    (
        "post",
        "/v2/models/{model}/generate",
        {
            "text_input": "a",
            "parameters": {"max_tokens": 2, "return_finish_reason": True},
            "sampling_parameters": {"temperature": 0, "stop": ["x"]},
            "return_num_output_tokens": True,
        },
    ),
    (
        "post",
        "/v2/models/{model}/infer",
        {
            "inputs": [
                {"name": "text_input", "datatype": "BYTES", "shape": [1], "data": ["a"]},
                {"name": "max_tokens", "datatype": "INT32", "shape": [1, 1], "data": [[2]]},
            ],
            "outputs": [{"name": "text_output"}, {"name": "num_input_tokens"}],
        },
    ),
    ("get", "/v2", None),
    ("get", "/v2/health/live", None),
    ("get", "/v2/health/ready", None),
    ("get", "/v2/models/stats", None),
    ("get", "/v2/models/{model}", None),
    ("get", "/v2/models/{model}/ready", None),
    ("get", "/v2/models/{model}/config", None),
    ("get", "/v2/models/{model}/stats", None),
    ("post", "/v2/repository/index", {"ready": True}),
    ("post", "/v2/repository/models/{model}/load", {"parameters": {}}),
    (
        "post",
        "/completion",
        {"prompt": "a", "n_predict": 2, "n_probs": 2, "return_tokens": True, "mirostat": 0},
    ),
    ("post", "/completion", {"prompt": "a", "n_predict": 1, "temperature": -2.5, "top_k": -9}),
    ("post", "/completions", {"prompt": [97], "n_predict": 2, "logit_bias": [[98, False]]}),
    ("post", "/apply-template", {"messages": MESSAGES["messages"]}),
    ("get", "/props", None),
    ("get", "/slots", None),
    ("post", "/generate", {"inputs": "a", "parameters": {"max_new_tokens": 2}}),
    (
        "post",
        "/",
        {
            "inputs": "a",
            "parameters": {
                "max_new_tokens": 2,
                "details": True,
                "decoder_input_details": True,
                "top_n_tokens": 2,
                "do_sample": True,
                "best_of": 2,
                "grammar": {"type": "regex", "value": "a+"},
            },
        },
    ),
    ("post", "/generate_stream", {"inputs": "a", "parameters": {"max_new_tokens": 2}}),
    ("get", "/info", None),
    ("post", "/v1/messages/count_tokens", {"messages": MESSAGES["messages"]}),
    ("post", "/v1/embeddings", {"model": "fake", "input": ["a", "b"], "dimensions": 3}),
    (
        "post",
        "/v1/embeddings",
        {"model": "fake", "input": [1, 2], "pooling": "mean", "encoding_format": "base64"},
    ),
    *(("post", path, {"text_1": "a", "text_2": ["b"]}) for path in ("/v1/score", "/score")),
    *(
        ("post", path, {"query": "a", "documents": ["b", {"text": "c"}], "top_n": 1})
        for path in ("/v1/rerank", "/rerank", "/v2/rerank")
    ),
    ("post", "/pooling", {"input": ["a", "b"]}),
    ("post", "/tokenize", {"prompt": "a", "return_token_strs": True}),
    ("post", "/tokenize", {"content": "aü", "add_special": True, "with_pieces": True}),
    ("post", "/detokenize", {"tokens": [97]}),
    ("get", "/v1/models", None),
    ("get", "/v1/models/{model}", None),
    ("get", "/health", None),
    ("get", "/ready", None),
    ("get", "/version", None),
    ("get", "/openapi.json", None),
    ("get", "/engine/workload", None),
    ("get", "/admin/status", None),
    ("post", "/admin/abort", {"request_id": "none"}),
    ("post", "/admin/cache/clear", None),
    ("post", "/admin/cache/keys", {"messages": [{"role": "user", "content": "a"}]}),
    ("post", "/admin/check", None),
    ("post", "/admin/log-level", {"level": "info"}),
]
DRAINING = ("/admin/drain", "/admin/resume")
QUERIES = {"/admin/cache/keys": "?path=/v1/chat/completions"}

FORBIDDEN: list[tuple[str, Any]] = [
    ("n", "2"),
    ("store", "x"),
    ("colour", 1),
    ("guided_choice", "a"),
    ("structured_outputs", {"xml": "a"}),
    ("response_format", {"type": "json_schema"}),
    ("tools", "f"),
    ("messages", None),
    ("messages", []),
    ("messages", [{"role": "user"}]),
    ("messages", [{"role": "tool", "content": "x"}]),
    ("messages", [{"role": "user", "content": [{"type": "image_url"}]}]),
    ("model", "another"),
    ("n", 129),
    ("temperature", -0.1),
    ("top_p", 0),
    ("seed", 2**64),
    ("max_tokens", 512),
    ("top_logprobs", 21),
    ("top_logprobs", 2),
    ("logit_bias", {"-1": 0}),
    ("logit_bias", {"1": 101}),
    ("stop", ""),
    ("stop", ["x"] * 65),
    ("stop_token_ids", [260]),
    ("priority", 2**63),
    ("stream_options", {}),
]


@pytest.fixture(scope="module")
def document(server: Server) -> dict[str, Any]:
    found: dict[str, Any] = server.http.get("/openapi.json").json()
    return found


def ask(server: Server, method: str, path: str, body: Any) -> httpx.Response:
    headers = {"authorization": f"Bearer {ADMIN_KEY}"}
    url = path.replace("{model}", "fake") + QUERIES.get(path, "")
    return server.http.request(method, url, json=body, headers=headers)


@pytest.mark.parametrize(("method", "path", "body"), ASKED, ids=lambda value: str(value)[:40])
def test_requests_and_answers_are_as_described(
    server: Server, document: dict[str, Any], method: str, path: str, body: Any
) -> None:
    check_answer(server, document, method, path, body)


def test_answers_of_draining_are_as_described(server: Server, document: dict[str, Any]) -> None:
    """What drains a server that tests share also resumes it, in one test."""
    for path in DRAINING:
        check_answer(server, document, "post", path, None)


def check_answer(
    server: Server, document: dict[str, Any], method: str, path: str, body: Any
) -> None:
    operation = document["paths"][path][method]
    if body is not None:
        schema = operation["requestBody"]["content"]["application/json"]["schema"]
        assert fault(body, schema, document) is None
    response = ask(server, method, path, body)
    assert response.status_code == 200, response.text
    if path in ALWAYS_STREAMED:
        check_events(response.text, path, document)
        return
    content = operation["responses"]["200"]["content"][response.headers["content-type"]]
    assert fault(response.json(), content["schema"], document) is None


def test_every_route_is_asked_above(document: dict[str, Any]) -> None:
    described = {(m, path) for path, methods in document["paths"].items() for m in methods}
    elsewhere = {("get", "/metrics"), ("get", "/engine/events"), ("post", "/admin/profile")}
    elsewhere.add(("get", "/admin/cache/events"))
    # tests/cli/test_cache.py, with a server that keeps blocks on disk
    elsewhere |= {("post", f"/admin/cache/{what}") for what in ("pin", "remove", "rename")}
    elsewhere.add(("get", "/admin/cache/prefixes"))
    elsewhere |= {("post", f"/v1/{what}_lora_adapter") for what in ("load", "unload")}  # texts
    elsewhere.add(("post", "/v2/models/{model}/generate_stream"))  # events
    elsewhere.add(("post", "/v2/repository/models/{model}/unload"))  # always refused
    elsewhere.add(("post", "/infill"))  # test_llama.py, with a model that can
    elsewhere |= {("post", "/classify"), ("post", "/v1/classify")}  # test_classifying.py, likewise
    # test_batches.py, with a server that keeps files
    kept = {(m, path) for m, path in described if path.startswith(("/v1/files", "/v1/batches"))}
    assert len(kept) == 9
    elsewhere |= kept
    # test_stored_responses.py
    elsewhere |= {(m, path) for m, path in described if path.startswith("/v1/responses/")}
    elsewhere |= {("post", path) for path in DRAINING}
    assert described == {(method, path) for method, path, _ in ASKED} | elsewhere


def test_an_upload_is_a_form(document: dict[str, Any]) -> None:
    content = document["paths"]["/v1/files"]["post"]["requestBody"]["content"]
    schema = content["multipart/form-data"]["schema"]
    assert schema["required"] == ["file", "purpose"]
    assert schema["properties"]["purpose"] == {"enum": ["batch"]}
    assert schema["properties"]["file"]["format"] == "binary"


STREAMED = ("/v1/completions", "/v1/chat/completions", "/v1/responses")
ALWAYS_STREAMED = ("/generate_stream",)


@pytest.mark.parametrize(("path", "body"), [(p, b) for _, p, b in ASKED if p in STREAMED])
def test_events_are_as_described(
    server: Server, document: dict[str, Any], path: str, body: dict[str, Any]
) -> None:
    if "best_of" in body:
        body = {**body, "best_of": 1}
    if path != "/v1/responses":
        options = {"include_usage": True, "continuous_usage_stats": True}
        body = {**body, "stream_options": options}
    text = server.post(path, {**body, "stream": True}).text
    if path != "/v1/responses":
        text, done, rest = text.partition("data: [DONE]\n\n")
        assert (bool(done), rest) == (True, "")
    check_events(text, path, document)


def check_events(text: str, path: str, document: dict[str, Any]) -> None:
    events = [part.partition("data: ")[2] for part in text.split("\n\n") if part]
    assert events
    answer = document["paths"][path]["post"]["responses"]["200"]["content"]["text/event-stream"]
    seen = answer["schema"]["properties"]["data"]["else"]["contentSchema"]
    for event in events:
        assert fault(json.loads(event), seen, document) is None


def test_what_the_document_forbids_is_refused_as_it_describes(
    server: Server, document: dict[str, Any]
) -> None:
    operation = document["paths"]["/v1/chat/completions"]["post"]
    asked = operation["requestBody"]["content"]["application/json"]["schema"]
    seen = operation["responses"]["4XX"]["content"]["application/json"]["schema"]
    for field, value in FORBIDDEN:
        body = {**MESSAGES, field: value}
        assert fault(body, asked, document) is not None
        response = server.post("/v1/chat/completions", body)
        assert response.status_code == (404 if field == "model" else 400), body
        assert fault(response.json(), seen, document) is None


def test_keys_are_documented(
    server: Server, document: dict[str, Any], tokenizer_folder: Any
) -> None:
    assert document["paths"]["/admin/drain"]["post"]["security"] == [{"admin": []}]
    assert "security" not in document["paths"]["/tokenize"]["post"]
    with running(tokenizer_folder, 1, api_keys="secret") as locked:
        assert locked.http.get("/openapi.json").status_code == 401
        found = locked.http.get("/openapi.json", headers={"authorization": "Bearer secret"}).json()
    for path, methods in found["paths"].items():
        for operation in methods.values():
            public = ("/health", "/ready", "/v2/health/live", "/v2/health/ready")
            assert ("security" in operation) == (path not in public), path
