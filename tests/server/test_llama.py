"""llama-server's endpoints: that they say what OpenAI's say, in its form."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from support.http_client import Server

from penstock.server.llama.input import completion_of
from penstock.server.llama.protocol import LlamaRequest

SAY = {"cache_salt": "say Žilina, 7."}
"""Makes the fake model say this and then end."""
GBNF = 'root ::= "yes" | digit{2,3}\ndigit ::= [0-9]\n'
LARK = 'start: "yes" | DIGIT{2,3}\nDIGIT: /[0-9]/\n'
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


def completed(server: Server, **fields: Any) -> Any:
    answer = server.post("/completion", {"prompt": "Hi", **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


def stream(server: Server, **fields: Any) -> list[dict[str, Any]]:
    answer = server.post("/completion", {"prompt": "Hi", "stream": True, **fields})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    parts = answer.text.split("\n\n")
    assert parts.pop() == ""
    return [json.loads(part.removeprefix("data: ")) for part in parts]


def continued(server: Server, count: int, **fields: Any) -> str:
    asked = {"prompt": "Hi", "max_tokens": count, **fields}
    text: str = server.post("/v1/completions", asked).json()["choices"][0]["text"]
    return text


def test_a_prompt_is_continued(server: Server) -> None:
    answer = completed(server, n_predict=12, temperature=0)
    assert answer["content"] == continued(server, 12, temperature=0)
    assert (answer["stop"], answer["stop_type"]) == (True, "limit")
    assert (answer["tokens_predicted"], answer["tokens_evaluated"]) == (12, 2)
    assert (answer["prompt"], answer["truncated"], answer["tokens"]) == ("Hi", False, [])
    assert answer["generation_settings"]["temperature"] == 0
    assert answer["generation_settings"]["n_predict"] == 12
    assert answer["generation_settings"]["repeat_last_n"] == 64
    timings = answer["timings"]
    assert (timings["prompt_n"] + timings["cache_n"], timings["predicted_n"]) == (2, 12)
    assert timings["predicted_ms"] > 0


def test_a_prompt_of_tokens(server: Server) -> None:
    text = completed(server, n_predict=6, seed=4)
    tokens = completed(server, prompt=list(b"Hi"), n_predict=6, seed=4, return_tokens=True)
    assert tokens["content"] == text["content"]
    assert tokens["prompt"] == "Hi"
    assert len(tokens["tokens"]) == 6
    other = server.post("/completions", {"prompt": "Hi", "max_tokens": 6, "seed": 4}).json()
    assert other["content"] == text["content"]


def test_without_a_limit_an_answer_goes_on_to_the_end_of_the_context(server: Server) -> None:
    assert completed(server)["tokens_predicted"] == 512 - 2


def test_a_limit_of_zero_computes_the_prompt_alone(server: Server) -> None:
    answer = completed(server, n_predict=0, n_probs=1, return_tokens=True)
    assert (answer["content"], answer["tokens"], answer["tokens_predicted"]) == ("", [], 0)
    assert "completion_probabilities" not in answer
    (only,) = stream(server, n_predict=0)
    assert (only["content"], only["stop"]) == ("", True)


def test_a_stream_is_the_answer(server: Server) -> None:
    whole = completed(server, return_tokens=True, n_probs=2, **SAY)
    assert (whole["content"], whole["stop_type"]) == ("Žilina, 7.", "eos")
    *parts, end = stream(server, n_probs=2, **SAY)
    assert "".join(part["content"] for part in parts) == whole["content"]
    assert [token for part in parts for token in part["tokens"]] == whole["tokens"]
    told = [each for part in parts for each in part["completion_probabilities"]]
    assert told == whole["completion_probabilities"]
    assert not any(part["stop"] for part in parts)
    assert not any("timings" in part for part in parts)
    assert (end["content"], end["tokens"], end["stop"]) == ("", [], True)
    different = {"content", "tokens", "timings", "completion_probabilities"}
    for name in whole.keys() - different:
        assert end[name] == whole[name], name


def test_timings_come_with_each_event_where_they_are_asked_for(server: Server) -> None:
    events = stream(server, n_predict=3, timings_per_token=True)
    counts = [each["timings"]["predicted_n"] for each in events]
    assert counts == sorted(counts)
    assert counts[-1] == 3


def test_likely_tokens(server: Server) -> None:
    answer = completed(server, n_predict=4, temperature=0, n_probs=3)
    same = server.client().completions.create(
        model="fake", prompt="Hi", max_tokens=4, temperature=0, logprobs=3
    )
    theirs = same.choices[0].logprobs
    assert theirs is not None
    told = answer["completion_probabilities"]
    assert [each["logprob"] for each in told] == theirs.token_logprobs
    assert [each["token"] for each in told] == theirs.tokens
    assert {len(each["top_logprobs"]) for each in told} == {3}


def test_a_stop(server: Server) -> None:
    answer = completed(server, stop=["7", "lin"], **SAY)
    assert (answer["content"], answer["stop_type"]) == ("Ži", "word")
    assert answer["stopping_word"] == "lin"


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ([[5, 1.5], [6, False], [5, 1]], {5: 2.5, 6: -100.0}),
        ({5: 1.5}, {5: 1.5}),
        (None, None),
    ],
)
def test_biases(given: Any, meant: dict[int, float] | None) -> None:
    """Each is by token, in either form; false means never."""
    request = msgspec.convert({"prompt": "a", "model": "m", "logit_bias": given}, LlamaRequest)
    assert completion_of(request, request.prompt).logit_bias == meant


def test_options_by_other_names() -> None:
    request = LlamaRequest(
        prompt="a",
        model="m",
        n_predict=-5,
        temperature=-1.0,
        top_k=-1,
        seed=2**32 - 1,
        repeat_penalty=1.2,
        stop=[],
    )
    asked = completion_of(request, request.prompt)
    assert (asked.max_tokens, asked.temperature, asked.top_k) == (None, 0.0, 0)
    assert (asked.seed, asked.repetition_penalty, asked.stop) == (None, 1.2, None)


@pytest.mark.parametrize(
    ("asked", "structured"),
    [
        ({"grammar": GBNF}, {"grammar": LARK}),
        ({"json_schema": SCHEMA}, {"json": SCHEMA}),
    ],
)
def test_grammars_are_those_of_completions(
    server: Server, asked: dict[str, Any], structured: dict[str, Any]
) -> None:
    expected = continued(server, 40, temperature=0, structured_outputs=structured)
    assert completed(server, n_predict=40, temperature=0, **asked)["content"] == expected


def test_a_template_is_applied(server: Server) -> None:
    said = [{"role": "user", "content": "Hi"}]
    prompt = server.post("/apply-template", {"messages": said}).json()["prompt"]
    assert prompt == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    chat = server.client().chat.completions.create(
        model="fake",
        messages=said,  # type: ignore[arg-type]
        max_tokens=6,
        temperature=0,
    )
    answer = completed(server, prompt=prompt, n_predict=6, temperature=0)
    assert answer["content"] == chat.choices[0].message.content


def test_the_server_is_told_of(server: Server) -> None:
    props = server.http.get("/props").json()
    assert props["default_generation_settings"]["n_ctx"] == 512
    assert props["model_alias"] == "fake"
    assert "im_start" in props["chat_template"]
    slots = server.http.get("/slots", params={"fail_on_no_slot": 1}).json()
    assert [each["id"] for each in slots] == list(range(props["total_slots"]))
    assert {each["n_ctx"] for each in slots} == {512}


def test_what_decides_the_status_of_slots_is_0_or_1(server: Server) -> None:
    answer = server.http.get("/slots", params={"fail_on_no_slot": "false"})
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == "fail_on_no_slot must be 0 or 1, not 'false'"
    assert server.http.get("/slots", params={"fail_on_no_slot": "0"}).status_code == 200


def test_a_slot_is_taken_while_an_answer_is_made(slow_server: Server) -> None:
    # This answer goes on until there is another, however slowly these lines come.
    body = {"prompt": "Hi", "stream": True, "cache_salt": "late fault"}
    with slow_server.http.stream("POST", "/completion", json=body) as answer:
        next(answer.iter_lines())
        slots = slow_server.http.get("/slots").json()
    assert [each["is_processing"] for each in slots].count(True) >= 1


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"mirostat": 2}, "'mirostat' is not supported"),
        ({"dry_multiplier": 0.8}, "'dry_multiplier' is not supported"),
        ({"xtc_probability": 0.5}, "'xtc_probability' is not supported"),
        ({"samplers": ["temperature"]}, "'samplers' is not supported"),
        ({"post_sampling_probs": True}, "'post_sampling_probs' is not supported"),
        ({"n_cmpl": 2}, "'n_cmpl' is not supported"),
        ({"lora": [{"id": 0, "scale": 1}]}, "'lora' is not supported"),
        ({"n_predct": 3}, "did you mean 'n_predict'"),
        ({"n_predict": 600}, "n_predict asks for 600"),
        ({"n_probs": 21}, "n_probs must be"),
        ({"repeat_penalty": -1}, "repeat_penalty must be"),
        ({"repeat_penalty": 1.1, "repeat_last_n": -2}, "repeat_last_n must be at least -1"),
        ({"grammar": "root ::= nope"}, "nope"),
        ({"grammar": 'root ::= "a'}, "the grammar is not GBNF"),
        ({"grammar": "root ::= " + "(" * 5000}, "nested too deeply"),
        ({"grammar": GBNF, "json_schema": SCHEMA}, "json_schema: grammar binds"),
        ({"json_schema": {"type": "robot"}}, "json_schema"),
        ({"logit_bias": [[5, True]]}, "logit_bias[0]"),
        ({"logit_bias": [[5]]}, "logit_bias[0]: must be"),
        ({"logit_bias": [[5.5, 1]]}, "logit_bias[0]: must be"),
        ({"logit_bias": [["a", 1]]}, "logit_bias[0][0]"),
        ({"prompt": ["a", "b"]}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"model": "other"}, "'other' does not exist here"),
    ],
)
def test_what_is_refused(server: Server, fields: dict[str, Any], words: str) -> None:
    answer = server.post("/completion", {"prompt": "Hi", **fields})
    assert answer.status_code in (400, 404), answer.text
    error = answer.json()["error"]
    assert words in error["message"]
    assert error["code"] == answer.status_code


def test_what_changes_nothing_is_accepted(server: Server) -> None:
    body = {
        "prompt": "a",
        "n_predict": 1,
        "mirostat": 0,
        "mirostat_tau": 5.0,
        "typical_p": 1,
        "dry_base": 1.75,
        "cache_prompt": False,
        "id_slot": -1,
        "seed": -1,
        "samplers": ["top_k", "typ_p", "top_p", "min_p", "temperature"],
    }
    answer = server.post("/completion", body)
    assert answer.status_code == 200, answer.text
    named = answer.headers["x-penstock-ignored"].split(", ")
    assert set(named) == {"mirostat_tau", "dry_base", "cache_prompt", "id_slot", "samplers"}


def test_penalties_look_at_as_many_tokens_as_are_asked_for(server: Server) -> None:
    for last in (-1, 0, 64):
        told = completed(server, n_predict=3, repeat_penalty=1.1, repeat_last_n=last)
        assert told["generation_settings"]["repeat_last_n"] == last


def test_fields_of_the_answer_that_are_wanted(server: Server) -> None:
    wanted = ["content", "generation_settings/n_predict", "timings/none", "stop_type"]
    told = completed(server, n_predict=3, temperature=0, response_fields=wanted)
    whole = completed(server, n_predict=3, temperature=0, response_fields=[])
    assert told == {
        "content": whole["content"],
        "generation_settings/n_predict": 3,
        "stop_type": "limit",
    }
    *parts, end = stream(server, n_predict=3, temperature=0, response_fields=wanted)
    assert end == {**told, "content": ""}
    assert "".join(part["content"] for part in parts) == told["content"]


def test_errors_have_a_reason(server: Server) -> None:
    error = server.post("/completion", {"model": "other", "prompt": "Hi"}).json()["error"]
    assert (error["code"], error["reason"]) == (404, "model_not_found")
