"""What popular clients send: accepted where it changes nothing, named where it is advice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.client_bodies import (
    BODIES,
    CHAT,
    COMPLETIONS,
    EMBEDDINGS,
    IGNORED,
    RESPONSES,
    TOKENIZE,
    USER,
    changed_nothing,
    text_of,
)
from support.http_client import Server, running

from penstock.errors import RequestError
from penstock.server.errors import api_error

VLLM: dict[str, Any] = {
    "use_beam_search": False,
    "length_penalty": 1.0,
    "early_stopping": False,
    "spaces_between_special_tokens": True,
    "detokenize": True,
    "return_tokens_as_token_ids": False,
    "return_token_ids": False,
    "logits_processors": None,
    "truncate_prompt_tokens": None,
    "kv_transfer_params": None,
    "guided_whitespace_pattern": None,
    "allowed_token_ids": None,
    "bad_words": [],
    "vllm_xargs": {},
}
# What a client that sends vLLM's defaults sends.
DEFAULTS: dict[str, Any] = {
    **VLLM,
    "add_special_tokens": None,
    "best_of": None,
    "frequency_penalty": 0.0,
    "ignore_eos": False,
    "include_stop_str_in_output": False,
    "logit_bias": None,
    "min_p": 0.0,
    "min_tokens": 0,
    "n": 1,
    "presence_penalty": 0.0,
    "priority": 0,
    "prompt_logprobs": None,
    "repetition_penalty": 1.0,
    "response_format": None,
    "return_token_ids": None,
    "seed": None,
    "skip_special_tokens": True,
    "stop": [],
    "stop_token_ids": [],
    "stream": False,
    "stream_options": None,
    "structured_outputs": None,
    "temperature": 1.0,
    "top_k": 0,
    "top_p": 1.0,
    "user": None,
}
CHAT_DEFAULTS: dict[str, Any] = {
    **DEFAULTS,
    "add_generation_prompt": True,
    "chat_template": None,
    "chat_template_kwargs": None,
    "continue_final_message": False,
    "documents": None,
    "echo": False,
    "include_reasoning": True,
    "logprobs": False,
    "max_completion_tokens": None,
    "mm_processor_kwargs": None,
    "parallel_tool_calls": True,
    "reasoning_effort": None,
    "tool_choice": "none",
    "tools": None,
    "top_logprobs": 0,
}
NEUTRAL: list[tuple[str, dict[str, Any]]] = [
    (COMPLETIONS, VLLM),
    (COMPLETIONS, {**DEFAULTS, "echo": False, "logprobs": None, "suffix": None}),
    (CHAT, CHAT_DEFAULTS),
    (CHAT, {**CHAT_DEFAULTS, "top_k": -1, "length_penalty": 1, "temperature": 1}),
    (RESPONSES, {"top_logprobs": 0, "include": None, "tools": [], "parallel_tool_calls": True}),
    (COMPLETIONS, {"length_penalty": 1, "suffix": "", "store": False}),
    (COMPLETIONS, {"response_format": {"type": "text"}}),
    (CHAT, VLLM),
    (CHAT, {"echo": False, "best_of": 1, "continue_final_message": False, "documents": None}),
    (CHAT, {"chat_template": None, "include_reasoning": True, "mm_processor_kwargs": None}),
    (CHAT, {"store": False, "metadata": {}, "service_tier": "auto", "modalities": ["text"]}),
    (CHAT, {"functions": [], "function_call": "auto", "reasoning_effort": "default"}),
    (CHAT, {"audio": None, "prediction": None, "web_search_options": None, "colour": None}),
    (CHAT, {"messages": [{**USER, "tool_calls": [], "refusal": None, "colour": None}]}),
    (CHAT, {"prediction": {"type": "content", "content": ""}}),
    (RESPONSES, {"truncation": "auto", "max_tool_calls": 3, "background": False, "reasoning": {}}),
    (RESPONSES, {"truncation": "disabled", "store": False, "context_management": []}),
    (RESPONSES, {"include": ["web_search_call.action.sources"], "text": {"format": None}}),
    (RESPONSES, {"stream_options": {"include_obfuscation": False}, "previous_response_id": None}),
    (EMBEDDINGS, {"truncate_prompt_tokens": None, "dimensions": None, "encoding_format": None}),
    (TOKENIZE, {"continue_final_message": False, "chat_template": None}),
]


@pytest.mark.parametrize(("path", "fields"), NEUTRAL, ids=lambda value: str(value)[:40])
def test_what_changes_nothing_is_accepted_without_a_word(
    server: Server, path: str, fields: dict[str, Any]
) -> None:
    assert changed_nothing(server, path, fields) == []


HINTS: dict[str, Any] = {
    "store": True,
    "service_tier": "flex",
    "prompt_cache_key": "k",
    "prompt_cache_retention": "24h",
    "request_id": "mine",
}
ADVICE: list[tuple[str, dict[str, Any], list[str]]] = [
    (COMPLETIONS, HINTS, list(HINTS)),
    (CHAT, HINTS, list(HINTS)),
    (RESPONSES, HINTS, [name for name in HINTS if name != "store"]),
    (CHAT, {"metadata": {"a": {"b": [1]}}, "verbosity": "low"}, ["metadata", "verbosity"]),
    (COMPLETIONS, {"metadata": {"a": "b"}}, ["metadata"]),
    (EMBEDDINGS, {"metadata": {"a": "b"}, "request_id": "x"}, ["metadata", "request_id"]),
    (CHAT, {"guided_decoding_backend": "xgrammar"}, ["guided_decoding_backend"]),
    (CHAT, {"messages": [{**USER, "cache_control": {"type": "ephemeral"}}]},
     ["messages[].cache_control"]),
    (CHAT, {"messages": [{"role": "user", "content": [
        {"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}}]}]},
     ["messages[].content[].cache_control"]),
    (TOKENIZE, {"messages": [{**USER, "provider_specific_fields": {"a": 1}}]},
     ["messages[].provider_specific_fields"]),
    (RESPONSES, {"include": ["reasoning.encrypted_content"]}, ["include[]"]),
    (RESPONSES, {"text": {"verbosity": "high"}, "reasoning": {"summary": "auto"}},
     ["text.verbosity", "reasoning.summary"]),
    (RESPONSES, {"input": [{"role": "user", "content": [
        {"type": "input_text", "text": "Hi", "cache_control": {}}], "extra_content": 1}]},
     ["input[].content[].cache_control", "input[].extra_content"]),
]  # fmt: skip


@pytest.mark.parametrize(("path", "fields", "named"), ADVICE, ids=lambda value: str(value)[:40])
def test_what_only_advises_is_accepted_and_named(
    server: Server, path: str, fields: dict[str, Any], named: list[str]
) -> None:
    assert changed_nothing(server, path, fields) == named


REFUSED: list[tuple[str, dict[str, Any], str, str]] = [
    (COMPLETIONS, {"length_penalty": 0.5}, "length_penalty", "use_beam_search"),
    (CHAT, {"early_stopping": True}, "early_stopping", "use_beam_search"),
    (COMPLETIONS, {"use_beam_search": True, "temperature": 0.5}, "temperature", "leave it out"),
    (CHAT, {"use_beam_search": True, "n": 2, "stop": "x"}, "stop", "leave it out"),
    (COMPLETIONS, {"use_beam_search": True, "n": 3, "best_of": 2}, "best_of", "at least n"),
    (CHAT, {"use_beam_search": True, "n": 100}, "n", "from 1 to 32"),
    (COMPLETIONS, {"use_beam_search": True, "best_of": 33}, "best_of", "from 1 to 32"),
    (COMPLETIONS, {"use_beam_search": True, "guided_regex": "a+"}, "guided_regex", "beam search"),
    (COMPLETIONS, {"detokenize": 1}, "detokenize", "true"),
    (COMPLETIONS, {"suffix": "end"}, "suffix", "cannot fill in"),
    (COMPLETIONS, {"metadata": 5}, "metadata", "any object"),
    (CHAT, {"best_of": 2}, "best_of", "'n'"),
    (CHAT, {"echo": True}, "echo", "/v1/completions"),
    (CHAT, {"chat_template": "{{ messages }}"}, "chat_template", "the server's"),
    (CHAT, {"documents": [{"text": "a"}]}, "documents", "message"),
    (EMBEDDINGS, {"truncate_prompt_tokens": 5}, "truncate_prompt_tokens", "cut"),
    (CHAT, {"reasoning_effort": "hgih"}, "reasoning_effort", "minimal"),
    (CHAT, {"include_reasoning": False}, "include_reasoning", "reasoning_content"),
    (CHAT, {"reasoning": {"effrot": "low"}}, "reasoning.effrot", "'effort'"),
    (CHAT, {"reasoning": "high"}, "reasoning", "object"),
    (CHAT, {"reasoning": [{"effort": "high"}]}, "reasoning", "object"),
    (CHAT, {"temprature": 1}, "temprature", "did you mean 'temperature'?"),
    (CHAT, {"max_token": 1}, "max_token", "did you mean 'max_tokens'?"),
    (CHAT, {"reasoning_efort": "low"}, "reasoning_efort", "did you mean 'reasoning_effort'?"),
    (CHAT, {"colour": 1}, "colour", "leave it out"),
    (CHAT, {"messages": [{**USER, "cache_contrl": 1}]}, "messages[0].cache_contrl",
     "did you mean 'cache_control'?"),
    (CHAT, {"messages": [{**USER, "images": ["aGk="]}]}, "messages[0].images", "text"),
    (CHAT, {"messages": [{**USER, "content": None}]}, "messages[0].content", "required"),
    (RESPONSES, {"max_tokens": 5}, "max_tokens", "did you mean 'max_output_tokens'?"),
    (RESPONSES, {"previous_response_id": "r"}, "previous_response_id", "no response"),
    (RESPONSES, {"conversation": "c"}, "conversation", "'previous_response_id'"),
    (RESPONSES, {"include": ["everything"]}, "include[0]", "everything"),
    (RESPONSES, {"stream_options": {"include_obfuscation": True}}, "stream_options", "padding"),
    (RESPONSES, {"max_tool_calls": "3"}, "max_tool_calls", "any integer"),
    (RESPONSES, {"text": {"verbsity": "low"}}, "text.verbsity", "did you mean 'verbosity'?"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "fields", "param", "words"), REFUSED, ids=lambda v: str(v)[:40])
def test_what_would_change_the_answer_is_refused_with_the_fix(
    server: Server, path: str, fields: dict[str, Any], param: str, words: str
) -> None:
    answer = server.post(path, {**BODIES[path], **fields})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    assert words in error["message"]


def test_beams_that_the_engine_refuses_are_named_as_requests_have_them() -> None:
    assert api_error(RequestError("needs 96 cache blocks", "beam_width")).body.error.param == "n"


def test_a_stream_and_an_error_name_what_is_ignored_too(server: Server) -> None:
    body = {**BODIES[CHAT], "store": True}
    assert server.post(CHAT, {**body, "stream": True}).headers[IGNORED] == "store"
    refused = server.post(CHAT, {**body, "temperature": -1})
    assert refused.status_code == 400
    assert refused.headers[IGNORED] == "store"


def test_the_log_reports_a_field_once(tokenizer_folder: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("wb") as file, running(tokenizer_folder, 1, stderr=file) as server:
        for value in ("flex", "priority"):
            assert server.post(CHAT, {**BODIES[CHAT], "service_tier": value}).status_code == 200
        assert server.post(CHAT, {**BODIES[CHAT], "store": True}).status_code == 200
    reported = [line for line in log.read_text().splitlines() if "penstock.fields" in line]
    assert len(reported) == 2
    assert "'service_tier' to /v1/chat/completions" in reported[0]
    assert "'store'" in reported[1]


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT, RESPONSES, EMBEDDINGS])
@pytest.mark.parametrize("named", [{}, {"model": None}])
def test_without_a_model_the_one_that_is_served_is_meant(
    server: Server, path: str, named: dict[str, Any]
) -> None:
    body = {name: value for name, value in BODIES[path].items() if name != "model"}
    answer = server.post(path, {**body, **named})
    assert text_of(path, answer) == text_of(path, server.post(path, BODIES[path]))
    assert answer.json()["model"] == "fake"


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT, RESPONSES])
def test_a_null_is_as_good_as_nothing_for_every_field(server: Server, path: str) -> None:
    document = server.http.get("/openapi.json").json()
    asked = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]
    schema = document["components"]["schemas"][asked["schema"]["$ref"].rpartition("/")[2]]
    nulls = dict.fromkeys(schema["properties"].keys() - BODIES[path].keys())
    assert len(nulls) > 30
    assert changed_nothing(server, path, nulls) == []


def test_a_response_format_binds_a_completion(server: Server) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
    given = {"type": "json_schema", "json_schema": {"name": "it", "schema": schema}}
    body = {**BODIES[COMPLETIONS], "response_format": given}
    assert server.post(COMPLETIONS, body).status_code == 200
    both = {**body, "guided_regex": "a+"}
    assert server.post(COMPLETIONS, both).json()["error"]["param"].startswith("response_format")
    given["json_schema"]["schema"] = {"type": "nonsense"}  # type: ignore[index]
    error = server.post(COMPLETIONS, body).json()["error"]
    assert error["param"] == "response_format.json_schema.schema"
