"""Every malformed or unsupported request is a 4xx in OpenAI's shape that names the field."""

from __future__ import annotations

from typing import Any

import pytest
from support.fake_core import MAX_MODEL_LEN, VOCAB
from support.http_client import JSON, Server, refused
from support.http_server import MAX_BODY_BYTES

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
RESPONSES = "/v1/responses"
TOKENIZE = "/tokenize"
DETOKENIZE = "/detokenize"
POSTED = (COMPLETIONS, CHAT, RESPONSES, TOKENIZE, DETOKENIZE)


def completion(**fields: Any) -> dict[str, Any]:
    return {"model": "fake", "prompt": "a", "max_tokens": 1, **fields}


def chat(**fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "a"}]
    return {"model": "fake", "messages": messages, "max_tokens": 1, **fields}


def message(**fields: Any) -> dict[str, Any]:
    return chat(messages=[{"role": "user", "content": "a", **fields}])


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"[]", "expected object"),
        (b'"text"', "expected object"),
        (b'{"model": "fake", "prompt": "a"} more', "not valid JSON"),
        (b'{"model": "fake", "prompt": "\xff"}', "UTF-8"),
        (b'{"model": "fake", "prompt": "\\ud800"}', "not valid JSON"),
        (b'{"model": "fake", "prompt": "\\udc00\\ud800"}', "not valid JSON"),
        (b'{"model": "fake", "prompt": "a", "temperature": NaN}', "not valid JSON"),
        (b'{"model": "fake", "prompt": "a", "temperature": Infinity}', "not valid JSON"),
        (b'{"model": "fake", "prompt": "a", "temperature": 1e999}', "temperature"),
        (b'{"model": "fake", "prompt": ' + b"[" * 90_000 + b"]" * 90_000 + b"}", "prompt"),
        (b'{"model": "fake", "prompt": "a", "logits_processors": ' + b"[" * 90_000, "too deeply"),
    ],
)
def test_bodies_that_are_no_request(server: Server, body: bytes, words: str) -> None:
    error = refused(server.post(COMPLETIONS, body))
    assert words.lower() in error["message"].lower()


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        # Types
        (COMPLETIONS, completion(n="2"), "n"),
        (COMPLETIONS, completion(n=1.5), "n"),
        (COMPLETIONS, completion(n=True), "n"),
        (COMPLETIONS, completion(stream="yes"), "stream"),
        (COMPLETIONS, completion(temperature="hot"), "temperature"),
        (COMPLETIONS, completion(stop=[1]), "stop[0]"),
        (COMPLETIONS, completion(stop={}), "stop"),
        (COMPLETIONS, completion(logit_bias={"x": 1}), "logit_bias"),
        (COMPLETIONS, completion(logit_bias=[1]), "logit_bias"),
        (COMPLETIONS, completion(prompt=5), "prompt"),
        (COMPLETIONS, completion(prompt=None), "prompt"),
        (COMPLETIONS, completion(prompt=[["a"]]), "prompt[0][0]"),
        (COMPLETIONS, completion(model=5), "model"),
        (COMPLETIONS, {"model": "fake"}, "prompt"),
        (CHAT, {"model": "fake"}, "messages"),
        (CHAT, chat(logprobs=2), "logprobs"),
        (CHAT, chat(messages="hello"), "messages"),
        # Ranges
        (COMPLETIONS, completion(n=0), "n"),
        (COMPLETIONS, completion(n=10**9), "n"),
        (COMPLETIONS, completion(n=10**30), "n"),
        (COMPLETIONS, completion(temperature=-0.1), "temperature"),
        (COMPLETIONS, completion(temperature=1e300), "temperature"),
        (COMPLETIONS, completion(top_p=0), "top_p"),
        (COMPLETIONS, completion(top_p=1.1), "top_p"),
        (COMPLETIONS, completion(top_k=-2), "top_k"),
        (COMPLETIONS, completion(top_k=10**30), "top_k"),
        (COMPLETIONS, completion(min_p=2), "min_p"),
        (COMPLETIONS, completion(truncate_prompt_tokens=0), "truncate_prompt_tokens"),
        (CHAT, chat(truncate_prompt_tokens=-2), "truncate_prompt_tokens"),
        (COMPLETIONS, completion(bad_words="a"), "bad_words"),
        (COMPLETIONS, completion(bad_words=["a"] * 65), "bad_words"),
        (CHAT, chat(bad_words=[""]), "bad_words"),
        (CHAT, chat(bad_words=["a"], allowed_token_ids=[1]), "allowed_token_ids"),
        (COMPLETIONS, completion(allowed_token_ids=[]), "allowed_token_ids"),
        (COMPLETIONS, completion(allowed_token_ids=[VOCAB]), "allowed_token_ids"),
        (CHAT, chat(allowed_token_ids=[1], guided_regex="a"), "allowed_token_ids"),
        (
            CHAT,
            chat(continue_final_message=True, add_generation_prompt=True),
            "continue_final_message",
        ),
        (COMPLETIONS, completion(repetition_penalty=0), "repetition_penalty"),
        (COMPLETIONS, completion(presence_penalty=3), "presence_penalty"),
        (COMPLETIONS, completion(frequency_penalty=-3), "frequency_penalty"),
        (COMPLETIONS, completion(seed=2**64), "seed"),
        (COMPLETIONS, completion(priority=2**64), "priority"),
        (COMPLETIONS, completion(max_tokens=0), "max_tokens"),
        (COMPLETIONS, completion(max_tokens=-1), "max_tokens"),
        (COMPLETIONS, completion(max_tokens=10**30), "max_tokens"),
        (COMPLETIONS, completion(min_tokens=5), "min_tokens"),
        (COMPLETIONS, completion(logprobs=21), "logprobs"),
        (COMPLETIONS, completion(prompt_logprobs=-1), "prompt_logprobs"),
        (COMPLETIONS, completion(stop=["x"] * 100), "stop"),
        (COMPLETIONS, completion(stop=""), "stop"),
        (COMPLETIONS, completion(stop_token_ids=[VOCAB]), "stop_token_ids"),
        (COMPLETIONS, completion(logit_bias={"5": 101}), "logit_bias"),
        (COMPLETIONS, completion(logit_bias={str(VOCAB): 1}), "logit_bias"),
        (COMPLETIONS, completion(best_of=1, n=2), "best_of"),
        (COMPLETIONS, completion(best_of=0), "best_of"),
        (COMPLETIONS, completion(best_of=10**9), "best_of"),
        (COMPLETIONS, completion(logprobs=10**6), "logprobs"),
        (COMPLETIONS, completion(prompt_logprobs=10**6), "prompt_logprobs"),
        (COMPLETIONS, completion(seed="7"), "seed"),
        (COMPLETIONS, completion(cache_salt=5), "cache_salt"),
        (COMPLETIONS, completion(user=[]), "user"),
        (COMPLETIONS, completion(stop=["x"] * 20_000), "stop"),
        (COMPLETIONS, completion(stop="x" * 100_000), "stop"),
        (COMPLETIONS, completion(stop_token_ids=[1] * 50_000), "stop_token_ids"),
        (COMPLETIONS, completion(logit_bias={str(10**30): 1}), "logit_bias"),
        (COMPLETIONS, completion(max_completion_tokens=5), "max_completion_tokens"),
        (COMPLETIONS, completion(prompt=[]), "prompt"),
        (COMPLETIONS, completion(prompt=""), "prompt"),
        (COMPLETIONS, completion(prompt=[""]), "prompt"),
        (COMPLETIONS, completion(prompt=[[]]), "prompt"),
        (COMPLETIONS, completion(prompt=["a", 5]), "prompt"),
        (COMPLETIONS, completion(prompt=[VOCAB]), "prompt"),
        (COMPLETIONS, completion(prompt=[-1]), "prompt"),
        (COMPLETIONS, completion(prompt=[10**30]), "prompt"),
        (COMPLETIONS, completion(prompt=[VOCAB], echo=True), "prompt"),
        (COMPLETIONS, completion(prompt=["a"] * 5000), "prompt"),
        (CHAT, chat(top_logprobs=2), "top_logprobs"),
        (CHAT, chat(logprobs=True, top_logprobs=21), "top_logprobs"),
        (CHAT, chat(logprobs=True, top_logprobs=10**6), "top_logprobs"),
        (CHAT, chat(logprobs=True, top_logprobs=-1), "top_logprobs"),
        (CHAT, chat(max_tokens=None, max_completion_tokens=0), "max_completion_tokens"),
        (CHAT, chat(n=10**9), "n"),
        (CHAT, chat(stop=["x"] * 20_000), "stop"),
        (CHAT, chat(best_of=2), "best_of"),
        (CHAT, chat(echo=True), "echo"),
        (CHAT, chat(max_completion_tokens=5), "max_tokens"),
        (CHAT, chat(messages=[]), "messages"),
        # Unknown and unsupported fields
        (COMPLETIONS, completion(temprature=1), "temprature"),
        (COMPLETIONS, completion(suffix="tail"), "suffix"),
        (COMPLETIONS, completion(stream_options={"include_usage": True}), "stream_options"),
        (
            COMPLETIONS,
            completion(stream=True, stream_options={"include_all": True}),
            "stream_options.include_all",
        ),
        (
            COMPLETIONS,
            completion(stream=True, stream_options={"continuous_usage_stats": True}),
            "stream_options.continuous_usage_stats",
        ),
        (CHAT, chat(prompt="a"), "prompt"),
        (CHAT, chat(tools=[{"type": "function"}]), "tools[0]"),
        (CHAT, chat(tool_choice="required"), "tool_choice"),
        (CHAT, chat(response_format={"type": "xml"}), "response_format.type"),
        (CHAT, chat(modalities=["audio"]), "modalities"),
        (CHAT, chat(store=0), "store"),
        (CHAT, chat(metadata="a"), "metadata"),
        (CHAT, chat(reasoning_effort="hgih"), "reasoning_effort"),
        (CHAT, chat(service_tier=5), "service_tier"),
        # Messages
        (CHAT, message(role="wizard"), "messages[0].role"),
        (CHAT, message(content=None), "messages[0].content"),
        (CHAT, message(content=5), "messages[0].content"),
        (CHAT, message(colour="red"), "messages[0].colour"),
        (CHAT, message(tool_call_id="x"), "messages[0]"),
        (CHAT, message(role="tool"), "messages[0]"),
        (CHAT, message(role="assistant", tool_calls=[{}]), "messages[0].tool_calls[0].id"),
        (CHAT, message(content=[{"type": "image_url", "image_url": {}}]), "messages[0].content[0]"),
        (CHAT, message(content=[{"type": "text"}]), "messages[0].content[0]"),
        (CHAT, message(content=[{"type": "text", "text": 5}]), "messages[0].content[0]"),
        (CHAT, message(content=["text"]), "messages[0].content[0]"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_fields(server: Server, path: str, body: dict[str, Any], param: str) -> None:
    error = refused(server.post(path, body))
    assert error["type"] == "invalid_request_error"
    named = error["param"]
    assert named == param or (param.startswith(named or "-") and named), error
    stream = {**body, "stream": True} if "stream" not in body else body
    if "stream_options" not in body:
        assert refused(server.post(path, stream))["param"] == named


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (TOKENIZE, {}, "prompt"),
        (TOKENIZE, {"prompt": "a", "messages": []}, "prompt"),
        (TOKENIZE, {"prompt": 5}, "prompt"),
        (TOKENIZE, {"prompt": "a", "add_generation_prompt": True}, "add_generation_prompt"),
        (TOKENIZE, {"prompt": "a", "chat_template_kwargs": {}}, "chat_template_kwargs"),
        (TOKENIZE, {"prompt": "a", "continue_final_message": True}, "continue_final_message"),
        (TOKENIZE, {"prompt": "a", "return_token_strs": 1}, "return_token_strs"),
        (TOKENIZE, {"prompt": "a", "colour": "red"}, "colour"),
        (TOKENIZE, {"messages": []}, "messages"),
        (TOKENIZE, {"messages": [{"role": "wizard", "content": "a"}]}, "messages[0].role"),
        (DETOKENIZE, {}, "tokens"),
        (DETOKENIZE, {"tokens": "a"}, "tokens"),
        (DETOKENIZE, {"tokens": [1, "a"]}, "tokens[1]"),
        (DETOKENIZE, {"tokens": [1, VOCAB]}, "tokens[1]"),
        (DETOKENIZE, {"tokens": [-1]}, "tokens[0]"),
        (DETOKENIZE, {"tokens": [10**30]}, "tokens[0]"),
        (DETOKENIZE, {"tokens": [1.5]}, "tokens[0]"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_fields_of_tokenizing(server: Server, path: str, body: dict[str, Any], param: str) -> None:
    named = refused(server.post(path, body))["param"]
    assert named == param or (param == "tokens[0]" and named == "tokens[...]"), named


@pytest.mark.parametrize("path", POSTED)
@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b'{"model": "fake", "a": 1, "a": 2}', "a"),
        (b'{"model": "fake", "model": "fake"}', None),
        (b'{"model": NaN}', None),
        (b'{"model": "fake", "x": -Infinity}', None),
        (b'{"model": "\\ud800"}', None),
        (b'{"model": "\xed\xa0\x80"}', None),
        (b'{"model": "\xff"}', None),
        (b'\xef\xbb\xbf{"model": "fake"}', None),
        (b'{"model": ' + b"[" * 90_000, "model"),
        (b'{"x": ' + b'{"x": ' * 15_000, "x"),
        (b'{"' + b"x" * 100_000 + b'": 1}', "x" * 50),
        (b'{"model": ' + b"9" * 100_000 + b"}", "model"),
        (b'{"model": "' + b"x" * 100_000 + b'"', None),
        (b"null", None),
    ],
    ids=lambda value: str(value)[:40],
)
def test_malformed_bodies_everywhere(
    server: Server, path: str, body: bytes, param: str | None
) -> None:
    error = refused(server.post(path, body))
    assert param is None or error["param"].startswith(param), error


@pytest.mark.parametrize(
    ("path", "body", "key"),
    [
        (COMPLETIONS, b'{"model": "fake", "prompt": "a", "prompt": "b"}', "prompt"),
        (COMPLETIONS, b'{"model":"fake","prompt":"a","logit_bias":{"5":1,"5":2}}', "5"),
        (COMPLETIONS, b'{"model":"fake","prompt":"a","n":1,"\\u006e":2}', "n"),
        (CHAT, b'{"model":"fake","messages":[{"role":"user","role":"user"}]}', "role"),
        (CHAT, b'{"model":"fake","messages":[],"chat_template_kwargs":{"a":{"b":1,"b":1}}}', "b"),
        (TOKENIZE, b'{"prompt": "a", "prompt": "a"}', "prompt"),
        (DETOKENIZE, b'{"tokens": [], "tokens": []}', "tokens"),
    ],
)
def test_keys_that_are_there_twice(server: Server, path: str, body: bytes, key: str) -> None:
    error = refused(server.post(path, body))
    assert (error["param"], error["code"]) == (key, "duplicate_parameter")


def test_what_an_error_quotes_of_a_request_is_short(server: Server) -> None:
    error = refused(server.post(COMPLETIONS, completion(model="x" * 100_000)), 404)
    assert error["message"].endswith("this server serves 'fake'")
    digits = b'{"model": "fake", "prompt": "a", "n": ' + b"9" * 4000 + b"}"
    assert refused(server.post(COMPLETIONS, digits))["param"] == "n"


def test_an_unsupported_part_is_refused_by_its_type(server: Server) -> None:
    part = {"type": "image_url", "image_url": {"url": "data:"}}
    error = refused(server.post(CHAT, message(content=[part])))
    assert "'image_url'" in error["message"]


def test_a_prompt_over_the_context_is_refused_with_the_arithmetic(server: Server) -> None:
    error = refused(server.post(COMPLETIONS, completion(prompt="a" * 600)))
    assert error["code"] == "context_length_exceeded"
    assert "600 tokens" in error["message"]
    assert str(MAX_MODEL_LEN) in error["message"]
    assert f"{600 - MAX_MODEL_LEN + 1} tokens shorter" in error["message"]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (COMPLETIONS, {"prompt": [1] * MAX_MODEL_LEN}, "prompt"),
        (COMPLETIONS, {"prompt": [1] * 3000}, "prompt"),
        (RESPONSES, {"input": "a" * 190_000}, "input"),
        (CHAT, {"messages": [{"role": "user", "content": "a" * 190_000}]}, "messages"),
    ],
)
def test_prompts_that_leave_no_room_are_named(
    server: Server, path: str, body: dict[str, Any], param: str
) -> None:
    error = refused(server.post(path, {"model": "fake", **body}))
    assert (error["param"], error["code"]) == (param, "context_length_exceeded")
    assert error["message"].startswith((f"{param} has", f"the {param} has"))


def test_more_output_than_fits_is_refused_with_the_arithmetic(server: Server) -> None:
    fits = completion(prompt="a" * 500, max_tokens=MAX_MODEL_LEN - 500)
    assert server.post(COMPLETIONS, fits).status_code == 200
    error = refused(server.post(COMPLETIONS, {**fits, "max_tokens": 13}))
    assert error["param"] == "max_tokens"
    assert error["code"] == "context_length_exceeded"
    for number in ("500", "13", "513", "512", "12"):
        assert number in error["message"]
    error = refused(server.post(CHAT, chat(max_tokens=None, max_completion_tokens=512)))
    assert error["param"] == "max_completion_tokens"


def test_the_wrong_model_is_a_404(server: Server) -> None:
    for path, body in ((COMPLETIONS, completion(model="x")), (CHAT, chat(model="x"))):
        error = refused(server.post(path, body), 404)
        assert error["code"] == "model_not_found"
        assert "'fake'" in error["message"]
    refused(server.http.get("/v1/models/x/y"), 404)


def test_paths_and_methods(server: Server) -> None:
    refused(server.http.get("/v1/nothing"), 404)
    response = server.http.get(COMPLETIONS)
    refused(response, 405)
    assert response.headers["allow"] == "POST"


@pytest.mark.parametrize("announced", [True, False])
def test_a_body_over_the_limit_is_a_413(server: Server, announced: bool) -> None:
    body = b'{"model": "fake", "prompt": "' + b"a" * MAX_BODY_BYTES + b'"}'
    content = body if announced else iter([body[:1000], body[1000:]])
    error = refused(server.http.post(COMPLETIONS, content=content, headers=JSON), 413)
    assert str(MAX_BODY_BYTES) in error["message"]


def test_the_server_is_well_after_all_of_this(server: Server) -> None:
    assert server.post(COMPLETIONS, completion()).status_code == 200
    assert server.metric("num_requests_running") == 0
