"""What popular clients send: accepted where it changes nothing, named where it is advice."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import byte_tokenizer
import httpx
import pytest
from http_client import Server, running

COMPLETIONS, CHAT, RESPONSES = "/v1/completions", "/v1/chat/completions", "/v1/responses"
EMBEDDINGS, TOKENIZE = "/v1/embeddings", "/tokenize"
USER = {"role": "user", "content": "Hi"}
BODIES: dict[str, dict[str, Any]] = {
    COMPLETIONS: {"model": "fake", "prompt": "Hi", "max_tokens": 4},
    CHAT: {"model": "fake", "messages": [USER], "max_tokens": 4},
    RESPONSES: {"model": "fake", "input": "Hi", "max_output_tokens": 4},
    EMBEDDINGS: {"model": "fake", "input": "Hi"},
    TOKENIZE: {"model": "fake", "messages": [USER]},
}
IGNORED = "x-penstock-ignored"


def text_of(path: str, answer: httpx.Response) -> Any:
    """What was generated, embedded or tokenized."""
    assert answer.status_code == 200, answer.text
    body = answer.json()
    if path == RESPONSES:
        return body["output"][0]["content"][0]["text"]
    if path == EMBEDDINGS:
        return body["data"][0]["embedding"]
    if path == TOKENIZE:
        return body["tokens"]
    choice = body["choices"][0]
    return choice["text"] if path == COMPLETIONS else choice["message"]["content"]


def changed_nothing(server: Server, path: str, fields: dict[str, Any]) -> list[str]:
    """The names in the header; the answer is that without ``fields``."""
    plain, given = (server.post(path, {**BODIES[path], **more}) for more in ({}, fields))
    assert text_of(path, plain) == text_of(path, given)
    assert IGNORED not in plain.headers
    return [name for name in given.headers.get(IGNORED, "").split(", ") if name]


VLLM: dict[str, Any] = {
    "use_beam_search": False,
    "length_penalty": 1.0,
    "early_stopping": False,
    "spaces_between_special_tokens": True,
    "detokenize": True,
    "return_tokens_as_token_ids": False,
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
    (RESPONSES, HINTS, list(HINTS)),
    (CHAT, {"metadata": {"a": {"b": [1]}}, "verbosity": "low"}, ["metadata", "verbosity"]),
    (COMPLETIONS, {"metadata": {"a": "b"}}, ["metadata"]),
    (EMBEDDINGS, {"metadata": {"a": "b"}, "request_id": "x"}, ["metadata", "request_id"]),
    (CHAT, {"prediction": {"type": "content", "content": "Hi"}}, ["prediction"]),
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
    (COMPLETIONS, {"use_beam_search": True}, "use_beam_search", "best_of"),
    (COMPLETIONS, {"length_penalty": 0.5}, "length_penalty", "1.0"),
    (COMPLETIONS, {"length_penalty": True}, "length_penalty", "true"),
    (COMPLETIONS, {"detokenize": 1}, "detokenize", "true"),
    (COMPLETIONS, {"suffix": "end"}, "suffix", "continue"),
    (COMPLETIONS, {"metadata": 5}, "metadata", "any object"),
    (CHAT, {"best_of": 2}, "best_of", "'n'"),
    (CHAT, {"echo": True}, "echo", "/v1/completions"),
    (CHAT, {"chat_template": "{{ messages }}"}, "chat_template", "the server's"),
    (CHAT, {"documents": [{"text": "a"}]}, "documents", "message"),
    (CHAT, {"truncate_prompt_tokens": 5}, "truncate_prompt_tokens", "cut"),
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
    (RESPONSES, {"previous_response_id": "r"}, "previous_response_id", "'input'"),
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


def test_a_stream_and_an_error_name_what_is_ignored_too(server: Server) -> None:
    body = {**BODIES[CHAT], "store": True}
    assert server.post(CHAT, {**body, "stream": True}).headers[IGNORED] == "store"
    refused = server.post(CHAT, {**body, "temperature": -1})
    assert refused.status_code == 400
    assert refused.headers[IGNORED] == "store"


def test_the_log_tells_a_field_once(tokenizer_folder: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("wb") as file, running(tokenizer_folder, 1, stderr=file) as server:
        for value in ("flex", "priority"):
            assert server.post(CHAT, {**BODIES[CHAT], "service_tier": value}).status_code == 200
        assert server.post(CHAT, {**BODIES[CHAT], "store": True}).status_code == 200
    told = [line for line in log.read_text().splitlines() if "penstock.fields" in line]
    assert len(told) == 2
    assert "'service_tier' to /v1/chat/completions" in told[0]
    assert "'store'" in told[1]


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


# Conversations, as clients send an answer back.


def second_turn(server: Server, said: dict[str, Any], first: bool = True) -> httpx.Response:
    messages = [USER, said, USER] if first else [said, USER]
    return server.post(CHAT, {**BODIES[CHAT], "messages": messages})


@pytest.mark.parametrize(
    "said",
    [
        {"content": "a", "refusal": None, "provider_specific_fields": {"refusal": None}},
        {"content": "a", "tool_calls": None, "function_call": None, "annotations": []},
        {"content": "a", "audio": None, "parsed": {"a": 1}, "id": "msg", "images": []},
        {"content": "a", "thinking_blocks": [{"type": "thinking", "thinking": "x"}]},
        {"content": "a", "reasoning_details": [], "annotations": [{"type": "url_citation"}]},
    ],
    ids=str,
)
def test_a_second_turn(server: Server, said: dict[str, Any]) -> None:
    plain = second_turn(server, {"role": "assistant", "content": "a"})
    assert text_of(CHAT, second_turn(server, {"role": "assistant", **said})) == text_of(CHAT, plain)


@pytest.mark.parametrize("said", [{}, {"content": None}, {"content": None, "tool_calls": []}])
def test_an_answer_without_content_is_empty(server: Server, said: dict[str, Any]) -> None:
    plain = second_turn(server, {"role": "assistant", "content": ""})
    assert text_of(CHAT, second_turn(server, {"role": "assistant", **said})) == text_of(CHAT, plain)


def tokens(server: Server, *messages: dict[str, Any], **fields: Any) -> list[int]:
    answer = server.post(TOKENIZE, {"messages": messages, **fields})
    assert answer.status_code == 200, answer.text
    found: list[int] = answer.json()["tokens"]
    return found


def test_reasoning_is_another_name_of_reasoning_content(tool_server: Server) -> None:
    said = {"role": "assistant", "content": "a"}
    known = tokens(tool_server, USER, {**said, "reasoning_content": "Hm."})
    assert known != tokens(tool_server, USER, said)
    assert tokens(tool_server, USER, {**said, "reasoning": "Hm."}) == known
    both = {**said, "reasoning": "Hm.", "reasoning_content": "Hm."}
    assert tokens(tool_server, USER, both) == known
    body = {"messages": [USER, {**both, "reasoning": "Ah."}]}
    error = tool_server.post(TOKENIZE, body).json()["error"]
    assert error["param"] == "messages[1].reasoning"
    error = tool_server.post(TOKENIZE, {"messages": [{**USER, "reasoning": "Hm."}]}).json()["error"]
    assert error["param"] == "messages[0].reasoning"


def test_a_call_may_come_back_with_what_a_client_added(tool_server: Server) -> None:
    function = {"name": "f", "arguments": '{"a": 1}'}
    call = {"id": "c1", "type": "function", "function": function}
    done = {"role": "tool", "tool_call_id": "c1", "content": "2"}
    noted = {
        **call,
        "index": 0,
        "extra_content": {"google": {"thought_signature": "x"}},
        "function": {**function, "parsed_arguments": {"a": 1}, "parameters": None},
    }
    plain, given = (
        tokens(tool_server, USER, {"role": "assistant", "tool_calls": [each]}, done)
        for each in (call, noted)
    )
    assert plain == given


def test_notes_in_tools_are_not_shown_to_the_model(tool_server: Server) -> None:
    function = {"name": "f", "parameters": {"type": "object", "properties": {}}}
    tool = {"type": "function", "function": function}
    noted = {
        **tool,
        "cache_control": {"type": "ephemeral"},
        "function": {**function, "strict": None},
    }
    used = []
    for each in (tool, noted):
        body = {**BODIES[CHAT], "tools": [each]}
        answer = tool_server.post(CHAT, body)
        assert answer.status_code == 200, answer.text
        used.append(answer.json()["usage"]["prompt_tokens"])
    assert used[0] == used[1]
    assert answer.headers[IGNORED] == "tools[].cache_control"


# Reasoning: what the chat template reads, it is told.

EFFORT_TEMPLATE = (
    "{% set effort = reasoning_effort | default('medium') %}Effort {{ effort }}. "
    "{% for m in messages %}{{ m.content }}{% endfor %}"
)


def with_template(folder: Path, template: str) -> Path:
    byte_tokenizer.write(folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module")
def effort_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(with_template(tmp_path_factory.mktemp("effort"), EFFORT_TEMPLATE), 1) as server:
        yield server


def prompt_tokens(server: Server, path: str, fields: dict[str, Any]) -> tuple[int, str]:
    """Of the prompt, and what the header names."""
    answer = server.post(path, {**BODIES[path], **fields})
    assert answer.status_code == 200, answer.text
    usage = answer.json()["usage"]
    named = answer.headers.get(IGNORED, "")
    return usage["input_tokens" if path == RESPONSES else "prompt_tokens"], named


@pytest.mark.parametrize(
    ("path", "fields", "word"),
    [
        (CHAT, {}, "medium"),
        (CHAT, {"reasoning_effort": "minimal"}, "minimal"),
        (CHAT, {"reasoning": {"effort": "low"}}, "low"),
        (RESPONSES, {"reasoning": {"effort": "xhigh"}}, "xhigh"),
        (CHAT, {"chat_template_kwargs": {"reasoning_effort": "low"}}, "low"),
    ],
)
def test_a_template_that_reads_the_effort_is_told(
    effort_server: Server, path: str, fields: dict[str, Any], word: str
) -> None:
    used = len(f"Effort {word}. Hi")
    assert prompt_tokens(effort_server, path, fields) == (used, "")


def test_what_the_template_is_told_by_its_own_name_goes_first(effort_server: Server) -> None:
    fields = {"reasoning_effort": "none", "chat_template_kwargs": {"reasoning_effort": "high"}}
    used = len("Effort high. Hi")
    assert prompt_tokens(effort_server, CHAT, fields) == (used, "reasoning_effort")
    fields = {"thinking": {"type": "disabled"}}
    used = len("Effort medium. Hi")
    assert prompt_tokens(effort_server, CHAT, fields) == (used, "thinking.type")


@pytest.mark.parametrize(
    ("path", "fields", "on", "named"),
    [
        (CHAT, {"thinking": {"type": "enabled", "budget_tokens": 9}}, 1, "thinking.budget_tokens"),
        (CHAT, {"thinking": {"type": "disabled"}}, 0, ""),
        (CHAT, {"enable_thinking": True}, 1, ""),
        (CHAT, {"enable_thinking": False}, 0, ""),
        (CHAT, {"reasoning_effort": "none"}, 0, ""),
        (CHAT, {"reasoning_effort": "high"}, 1, "reasoning_effort"),
        (CHAT, {"reasoning": {"enabled": True, "exclude": False}}, 1, ""),
        (RESPONSES, {"reasoning": {"effort": "low", "summary": None}}, 1, "reasoning.effort"),
        (RESPONSES, {"reasoning": {"effort": "none"}}, 0, ""),
    ],
    ids=str,
)
def test_a_template_with_a_switch_is_told_on_and_off(
    server: Server, path: str, fields: dict[str, Any], on: bool, named: str
) -> None:
    switch = {"chat_template_kwargs": {"thinking": bool(on)}}
    used, _ = prompt_tokens(server, path, switch)
    assert prompt_tokens(server, path, fields) == (used, named)


def test_a_template_that_reads_neither_takes_them_for_advice(tmp_path: Path) -> None:
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    with running(with_template(tmp_path, template), 1) as plain:
        fields = {"reasoning_effort": "high", "thinking": {"type": "enabled"}, "store": True}
        named = "store, reasoning_effort, thinking.type"
        assert prompt_tokens(plain, CHAT, fields) == (2, named)
        assert prompt_tokens(plain, RESPONSES, {"reasoning": {"effort": "low"}})[0] == 2


# Formats.


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
