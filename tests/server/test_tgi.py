"""Text Generation Inference's endpoints: that they say what OpenAI's say, in its form."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.http_client import Server, running

SAY = {"cache_salt": "say Žilina, 7."}
"""Makes the fake model say this, in more tokens than characters, and then end."""


def continued(server: Server, prompt: str, count: int, **options: Any) -> str:
    text = server.client().completions.create(
        model="fake", prompt=prompt, max_tokens=count, temperature=0, **options
    )
    return text.choices[0].text


def generate(server: Server, path: str, parameters: dict[str, Any], **fields: Any) -> Any:
    answer = server.post(path, {"inputs": "Hi", "parameters": parameters, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


def stream(
    server: Server, parameters: dict[str, Any], path: str = "/generate_stream", **fields: Any
) -> list[dict[str, Any]]:
    answer = server.post(path, {"inputs": "Hi", "parameters": parameters, **fields})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    parts = answer.text.split("\n\n")
    assert parts.pop() == ""
    return [json.loads(part.removeprefix("data:")) for part in parts]


def test_a_text_is_continued(server: Server) -> None:
    expected = continued(server, "Hi", 12)
    answer = generate(server, "/generate", {"max_new_tokens": 12})
    assert answer == {"generated_text": expected}
    assert generate(server, "/", {"max_new_tokens": 12}) == [answer]
    whole = {"max_new_tokens": 12, "return_full_text": True}
    assert generate(server, "/generate", whole) == {"generated_text": "Hi" + expected}


def test_without_a_limit_an_answer_goes_on_to_the_end_of_the_context(server: Server) -> None:
    details = generate(server, "/generate", {"details": True})["details"]
    assert (details["finish_reason"], details["generated_tokens"]) == ("length", 512 - 2)


def test_details(server: Server) -> None:
    asked = {
        "max_new_tokens": 5,
        "details": True,
        "decoder_input_details": True,
        "top_n_tokens": 3,
    }
    answer = generate(server, "/generate", asked)
    details = answer["details"]
    same = server.client().completions.create(
        model="fake", prompt="Hi", max_tokens=5, temperature=0, logprobs=3, echo=True
    )
    theirs = same.choices[0].logprobs
    assert theirs is not None
    told = [*details["prefill"], *details["tokens"]]
    assert [each["logprob"] for each in told] == theirs.token_logprobs
    assert [each["text"] for each in details["prefill"]] == ["H", "i"]
    assert "".join(each["text"] for each in details["tokens"]) == answer["generated_text"]
    assert {len(tops) for tops in details["top_tokens"]} == {3}
    for tops in details["top_tokens"]:
        assert sorted(tops, key=lambda each: -each["logprob"]) == tops
    assert (details["finish_reason"], details["generated_tokens"]) == ("length", 5)
    assert details["seed"] is None


def test_texts_of_tokens_are_cut_at_characters(server: Server) -> None:
    answer = generate(server, "/generate", {"details": True}, **SAY)
    *tokens, end = answer["details"]["tokens"]
    assert answer["generated_text"] == "Žilina, 7."
    assert [each["text"] for each in tokens] == ["", *"Žilina, 7."]
    assert not any(each["special"] for each in tokens)
    assert (end["special"], answer["details"]["finish_reason"]) == (True, "eos_token")


@pytest.mark.parametrize("path", ["/generate_stream", "/"])
def test_a_stream_is_the_answer_token_by_token(server: Server, path: str) -> None:
    fields: dict[str, Any] = dict(SAY) if path != "/" else {**SAY, "stream": True}
    asked = {"details": True, "top_n_tokens": 2}
    whole = generate(server, "/generate", asked, **SAY)
    events = stream(server, asked, path, **fields)
    assert [each["index"] for each in events] == list(range(1, len(events) + 1))
    assert [each["token"] for each in events] == whole["details"]["tokens"]
    assert [each["top_tokens"] for each in events] == whole["details"]["top_tokens"]
    *before, last = events
    assert {each["generated_text"] for each in before} == {None}
    assert all(each["details"] is None for each in before)
    assert last["generated_text"] == whole["generated_text"]
    assert last["details"] == {
        "finish_reason": "eos_token",
        "generated_tokens": len(events),
        "seed": None,
        "input_length": 2,
    }


def test_a_stream_tells_of_its_end_where_that_is_asked_for(server: Server) -> None:
    (*_, last) = stream(server, {"max_new_tokens": 3})
    assert last["details"] is None
    assert last["generated_text"] == continued(server, "Hi", 3)


def test_a_stop_stays_in_the_text(server: Server) -> None:
    asked = {"stop": ["lin", "7"], "details": True}
    answer = generate(server, "/generate", asked, **SAY)
    assert answer["generated_text"] == "Žilin"
    assert answer["details"]["finish_reason"] == "stop_sequence"
    events = stream(server, asked, **SAY)
    assert "".join(each["token"]["text"] for each in events) == "Žilin"
    assert events[-1]["details"]["finish_reason"] == "stop_sequence"


def test_sampling_is_asked_for(server: Server) -> None:
    """A temperature of 1 changes nothing, and so does not ask for it; a drawn seed is told."""
    greedy = continued(server, "Hi", 30)
    for neutral in ({}, {"temperature": 1.0}, {"do_sample": False}, {"seed": 5}):
        parameters = {"max_new_tokens": 30, "details": True, **neutral}
        answer = generate(server, "/generate", parameters)
        assert (answer["generated_text"], answer["details"]["seed"]) == (greedy, None)
    for sampling in ({"do_sample": True}, {"temperature": 1.1}, {"top_k": 50}, {"top_p": 0.99}):
        parameters = {"max_new_tokens": 30, "details": True, **sampling}
        answer = generate(server, "/generate", parameters)
        seed = answer["details"]["seed"]
        assert generate(server, "/generate", {**parameters, "seed": seed}) == answer


def test_the_best_of_several(server: Server) -> None:
    asked = {"max_new_tokens": 6, "do_sample": True, "seed": 3, "best_of": 3, "details": True}
    answer = generate(server, "/generate", asked)
    others = answer["details"]["best_of_sequences"]
    assert len(others) == 2
    found = [answer["details"], *others]
    means = [sum(each["logprob"] for each in one["tokens"]) for one in found]
    assert means == sorted(means, reverse=True)
    expected = server.client().completions.create(
        model="fake", prompt="Hi", max_tokens=6, temperature=1, seed=3, best_of=3
    )
    assert answer["generated_text"] == expected.choices[0].text
    del asked["details"]
    assert generate(server, "/generate", asked) == {"generated_text": answer["generated_text"]}


def test_a_prompt_is_cut_to_its_end(server: Server) -> None:
    body = {"inputs": "abcHi", "parameters": {"truncate": 2, "max_new_tokens": 5}}
    answer = server.post("/generate", body).json()
    assert answer == {"generated_text": continued(server, "Hi", 5)}


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


@pytest.mark.parametrize(
    "grammar",
    [
        {"type": "regex", "value": "[0-9]{3}"},
        {"type": "json", "value": SCHEMA},
        {"type": "json", "value": json.dumps(SCHEMA)},
        {"type": "json_schema", "value": {"name": "it", "schema": SCHEMA}},
    ],
)
def test_grammars_are_those_of_completions(server: Server, grammar: dict[str, Any]) -> None:
    schema = SCHEMA if grammar["type"] != "regex" else None
    structured = {"regex": grammar["value"]} if schema is None else {"json": schema}
    expected = server.post(
        "/v1/completions",
        {"prompt": "Hi", "max_tokens": 40, "temperature": 0, "structured_outputs": structured},
    ).json()["choices"][0]["text"]
    answer = generate(server, "/generate", {"max_new_tokens": 40, "grammar": grammar})
    assert answer == {"generated_text": expected}


def test_the_server_is_told_of(server: Server) -> None:
    info = server.http.get("/info").json()
    assert (info["model_id"], info["max_total_tokens"]) == ("fake", 512)
    assert info["max_input_tokens"] == 511


PARAMETERS: list[tuple[dict[str, Any], str]] = [
    ({"watermark": True}, "'parameters.watermark' is not supported"),
    ({"typical_p": 0.9}, "'parameters.typical_p' is not supported"),
    ({"adapter_id": "a"}, "'parameters.adapter_id' is not supported"),
    ({"temprature": 1}, "did you mean 'temperature'"),
    ({"max_new_tokens": 600}, "parameters.max_new_tokens asks for 600"),
    ({"max_new_tokens": 0}, "parameters.max_new_tokens must be"),
    ({"top_n_tokens": 21, "details": True}, "parameters.top_n_tokens must be"),
    ({"truncate": 0}, "parameters.truncate: must be at least 1"),
    ({"best_of": 0}, "parameters.best_of must be"),
    ({"temperature": -1}, "parameters.temperature must be"),
    ({"stop": "a"}, "parameters.stop"),
    ({"grammar": {"type": "xml", "value": ""}}, "parameters.grammar.type"),
    ({"grammar": {"type": "regex", "value": "("}}, "parameters.grammar.value"),
    ({"grammar": {"type": "regex", "value": {}}}, "parameters.grammar.value: must be a regular"),
    ({"grammar": {"type": "json", "value": "{"}}, "parameters.grammar.value: not JSON"),
    ({"grammar": {"type": "json", "value": {"type": "no"}}}, "parameters.grammar.value"),
    ({"grammar": {"type": "json_schema", "value": {}}}, "parameters.grammar.value.schema"),
]
BODIES: list[tuple[str, dict[str, Any], str]] = [
    ("/generate", {"stream": True}, "'stream' is not supported"),
    ("/generate_stream", {"stream": False}, "'stream' is not supported"),
    ("/generate_stream", {"parameters": {"best_of": 2}}, "parameters.best_of"),
    ("/", {"stream": True, "parameters": {"decoder_input_details": True}}, "do not stream"),
    ("/", {"inputs": ""}, "empty"),
    ("/", {"inputs": "a" * 600}, "the prompt has 600 tokens"),
    ("/generate", {"inputs": 5}, "inputs"),
    ("/generate", {"model": "other"}, "'other' does not exist here"),
]


@pytest.mark.parametrize(
    ("path", "fields", "words"),
    [("/generate", {"parameters": given}, words) for given, words in PARAMETERS] + BODIES,
)
def test_what_is_refused(server: Server, path: str, fields: dict[str, Any], words: str) -> None:
    answer = server.post(path, {"inputs": "Hi", **fields})
    assert answer.status_code in (400, 404), answer.text
    assert words in answer.json()["error"]
    assert answer.json()["error_type"] == "validation"


def test_what_changes_nothing_is_accepted(server: Server) -> None:
    given = {"typical_p": None, "watermark": False, "adapter_id": None, "max_new_tokens": 1}
    answer = server.post("/", {"inputs": "a", "parameters": given, "options": {"use_cache": True}})
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-penstock-ignored"] == "options.use_cache"


def test_the_root_needs_a_key_though_the_page_does_not(tokenizer_folder: Path) -> None:
    body = {"inputs": "a", "parameters": {"max_new_tokens": 1}}
    with running(tokenizer_folder, 1, api_keys="secret") as locked:
        assert locked.http.get("/").status_code == 200
        assert locked.http.post("/", json=body).status_code == 401
        allowed = locked.http.post("/", json=body, headers={"authorization": "Bearer secret"})
        assert allowed.status_code == 200
