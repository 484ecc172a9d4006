"""KServe's protocol and Triton's extensions of it, and that they say what OpenAI's API says."""

from __future__ import annotations

import contextlib
import json
import struct
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.http_client import Server, running

from penstock.server.errors import ApiError
from penstock.server.kserve import elements
from penstock.server.kserve.input import TextDecoder
from penstock.server.kserve.tensors import InferDecoder

MODEL = "/v2/models/fake"
HEADER = "inference-header-content-length"
TEXT = {"text_input": "Hi", "max_tokens": 9}


def completion(server: Server, prompt: str, count: int, **more: Any) -> str:
    asked = {"model": "fake", "prompt": prompt, "max_tokens": count, **more}
    text: str = server.post("/v1/completions", asked).json()["choices"][0]["text"]
    return text


def tensor(name: str, datatype: str, value: Any, shape: tuple[int, ...] = (1,)) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": list(shape), "data": [value]}


def texts(*values: str) -> bytes:
    return elements.to_bytes(values, "BYTES")


def events(answer: httpx.Response) -> list[dict[str, Any]]:
    assert answer.headers["content-type"].startswith("text/event-stream"), answer.text
    parts = [part for part in answer.text.split("\n\n") if part]
    return [json.loads(part.removeprefix("data: ")) for part in parts]


def error(answer: httpx.Response, status: int = 400) -> str:
    assert answer.status_code == status, answer.text
    (name, message), *rest = answer.json().items()
    assert name == "error"
    assert [also for also, _ in rest] in ([], ["code"])
    assert isinstance(message, str)
    return message


def test_a_text(server: Server) -> None:
    answer = server.post(f"{MODEL}/generate", {**TEXT, "id": "x"}).json()
    text = "Hi" + completion(server, "Hi", 9)
    assert answer == {"model_name": "fake", "model_version": "1", "id": "x", "text_output": text}
    alone = server.post(f"{MODEL}/versions/1/generate", {**TEXT, "exclude_input_in_output": True})
    assert alone.json()["text_output"] == completion(server, "Hi", 9)


def test_options_may_stand_in_three_places(server: Server) -> None:
    options = {"max_tokens": 7, "temperature": 0.7, "seed": 3, "exclude_input_in_output": True}
    as_text = {name: str(value) for name, value in options.items()}
    expected = completion(server, "Hi", 7, temperature=0.7, seed=3)
    places: list[dict[str, Any]] = [
        options,
        {"parameters": options},
        {"sampling_parameters": options},
        {"sampling_parameters": json.dumps(options)},
        {"sampling_parameters": json.dumps(as_text)},
        {"sampling_parameters": as_text, "parameters": {"random_seed": 3}},
    ]
    for place in places:
        answer = server.post(f"{MODEL}/generate", {"text_input": "Hi", **place})
        assert answer.json().get("text_output") == expected, answer.text


def test_a_stream_is_the_answer_without_the_prompt(server: Server) -> None:
    asked = {**TEXT, "max_tokens": 20, "stream": True, "id": "s", "return_finish_reason": True}
    asked |= {"return_num_output_tokens": True, "return_num_input_tokens": True}
    parts = events(server.post(f"{MODEL}/generate_stream", asked))
    assert len(parts) > 2
    assert "".join(part["text_output"] for part in parts) == completion(server, "Hi", 20)
    assert [part["finish_reason"] for part in parts] == ["None"] * (len(parts) - 1) + ["length"]
    assert sum(part["num_output_tokens"] for part in parts) == 20
    assert {part["num_input_tokens"] for part in parts} == {2}
    assert {part["id"] for part in parts} == {"s"}


def test_a_stream_of_one(server: Server) -> None:
    (part,) = events(server.post(f"{MODEL}/generate_stream", TEXT))
    assert part == server.post(f"{MODEL}/generate", TEXT).json()


def test_stop_words(server: Server) -> None:
    text = completion(server, "Hi", 40)
    for stop in (text[20:23], [text[20:23], "\x00"]):
        asked = {"text_input": "Hi", "max_tokens": 40, "exclude_input_in_output": True}
        found = server.post(f"{MODEL}/generate", {**asked, "stop_words": stop, "bad_words": ""})
        assert found.json()["text_output"] == text[: text.index(text[20:23])]


def test_sixteen_tokens_where_no_number_is_asked_for(server: Server) -> None:
    asked = {"text_input": "Hi", "return_num_output_tokens": True}
    assert server.post(f"{MODEL}/generate", asked).json()["num_output_tokens"] == 16


def test_tensors_in_json(server: Server) -> None:
    asked = {
        "id": "t",
        "inputs": [
            tensor("text_input", "BYTES", ["Hi"], (1, 1)),
            tensor("max_tokens", "INT32", 9),
            tensor("return_num_output_tokens", "BOOL", True),
        ],
        "parameters": {"exclude_input_in_output": True},
    }
    answer = server.post(f"{MODEL}/infer", asked)
    assert answer.headers["content-type"] == "application/json"
    text = tensor("text_output", "BYTES", completion(server, "Hi", 9))
    counted = tensor("num_output_tokens", "UINT32", 9)
    told = {"model_name": "fake", "model_version": "1", "id": "t"}
    assert answer.json() == {**told, "outputs": [text, counted]}


@pytest.mark.parametrize("binary", [True, False])
def test_tensors_in_bytes(server: Server, binary: bool) -> None:
    """As Triton's client sends them, which says nothing of their type."""
    prompt, count, stops = texts("Žluť"), struct.pack("<i", 9), texts("\x00", "\x01")
    asked = {
        "inputs": [
            {"name": name, "datatype": kind, "shape": [shape],
             "parameters": {"binary_data_size": len(data)}}
            for name, kind, shape, data in (
                ("text_input", "BYTES", 1, prompt),
                ("max_tokens", "INT32", 1, count),
                ("stop_words", "BYTES", 2, stops),
            )
        ],
        "outputs": [
            {"name": "text_output", "parameters": {"binary_data": binary}},
            {"name": "cumulative_logprob", "parameters": {"binary_data": binary}},
        ],
    }  # fmt: skip
    head = json.dumps(asked).encode()
    body = head + prompt + count + stops
    answer = server.http.post(f"{MODEL}/infer", content=body, headers={HEADER: str(len(head))})
    assert answer.status_code == 200, answer.text
    expected = "Žluť" + completion(server, "Žluť", 9, stop=["\x00", "\x01"])
    if not binary:
        assert answer.json()["outputs"][0]["data"] == [expected]
        assert answer.json()["outputs"][1]["data"][0] < 0
        return
    assert answer.headers["content-type"] == "application/octet-stream"
    end = int(answer.headers[HEADER])
    outputs = json.loads(answer.content[:end])["outputs"]
    sizes = [each["parameters"]["binary_data_size"] for each in outputs]
    assert sizes == [len(texts(expected)), 4]
    assert answer.content[end : end + sizes[0]] == texts(expected)
    assert struct.unpack("<f", answer.content[end + sizes[0] :])[0] < 0


def test_the_server_and_the_model_are_told_of(server: Server) -> None:
    get = server.http.get
    told = get("/v2").json()
    assert told["name"] == "penstock"
    assert "binary_tensor_data" in told["extensions"]
    assert get("/v2/health/live").json() == {"live": True}
    assert get("/v2/health/ready").json() == {"ready": True}
    assert get(f"{MODEL}/versions/1/ready").json() == {"name": "fake", "ready": True}
    model = get(MODEL).json()
    assert model["versions"] == ["1"]
    assert {"name": "text_input", "datatype": "BYTES", "shape": [1]} in model["inputs"]
    assert {"name": "text_output", "datatype": "BYTES", "shape": [1]} in model["outputs"]
    config = get(f"{MODEL}/config").json()
    assert config["model_transaction_policy"] == {"decoupled": True}
    required = [each["name"] for each in config["input"] if not each["optional"]]
    assert required == ["text_input"]


def test_statistics_count_answers(server: Server) -> None:
    def told() -> dict[str, Any]:
        (model,) = server.http.get(f"{MODEL}/stats").json()["model_stats"]
        found: dict[str, Any] = model
        return found

    before = told()
    server.post(f"{MODEL}/generate", TEXT)
    after = told()
    assert after["inference_count"] == before["inference_count"] + 1
    assert after["last_inference"] > before["last_inference"]
    times = after["inference_stats"]
    assert times["success"]["count"] == after["inference_count"]
    parts = sum(times[name]["ns"] for name in ("queue", "compute_input", "compute_infer"))
    assert 0 < parts <= times["success"]["ns"] * 1.001


def test_the_repository_has_one_model(server: Server) -> None:
    model = {"name": "fake", "version": "1", "state": "READY", "reason": ""}
    assert server.http.post("/v2/repository/index").json() == [model]
    assert server.http.post("/v2/repository/index", content=b'{"ready": true}').json() == [model]
    assert server.http.post("/v2/repository/models/fake/load").status_code == 200
    changed = server.post("/v2/repository/models/fake/load", {"parameters": {"config": "{}"}})
    assert "config" in error(changed)
    assert "not unloaded" in error(server.http.post("/v2/repository/models/fake/unload"))
    assert "'other' does not exist" in error(
        server.http.post("/v2/repository/models/other/load"), 404
    )


def test_a_server_that_takes_no_work_is_not_ready(fresh_server: Server) -> None:
    assert fresh_server.admin("drain", {}).status_code == 200
    assert fresh_server.http.get("/v2/health/live").status_code == 200
    for path in ("/v2/health/ready", f"{MODEL}/ready"):
        assert fresh_server.http.get(path).status_code == 503
    error(fresh_server.post(f"{MODEL}/generate", TEXT), 503)
    (model,) = fresh_server.http.post("/v2/repository/index").json()
    assert model["state"] == "UNAVAILABLE"
    assert model["reason"]
    assert fresh_server.http.post("/v2/repository/index", content=b'{"ready":true}').json() == []


def test_keys(tokenizer_folder: Path) -> None:
    with running(tokenizer_folder, 1, api_keys="secret") as server:
        assert server.http.get("/v2/health/ready").status_code == 200
        assert server.http.get("/v2").status_code == 401
        assert server.post(f"{MODEL}/generate", TEXT).status_code == 401
        key = {"authorization": "Bearer secret"}
        assert server.http.post(f"{MODEL}/generate", json=TEXT, headers=key).status_code == 200


def test_pages_of_other_sites_send_no_tensors(server: Server) -> None:
    body = json.dumps({"inputs": [tensor("text_input", "BYTES", "Hi")]}).encode()
    page = {"origin": "https://elsewhere.example"}
    assert server.http.post(f"{MODEL}/infer", content=body, headers=page).status_code == 403
    form = {"content-type": "text/plain"}
    assert server.http.post(f"{MODEL}/infer", content=body, headers=form).status_code == 415
    packed = {"content-encoding": "gzip"}
    assert server.http.post(f"{MODEL}/infer", content=body, headers=packed).status_code == 415


@pytest.mark.parametrize(
    ("path", "fields", "words"),
    [
        ("generate", {"stream": True}, "generate_stream"),
        ("generate", {"temperature": 1, "parameters": {"temperature": 2}}, "disagree"),
        ("generate", {"sampling_parameters": "{"}, "sampling_parameters:"),
        ("generate", {"sampling_parameters": "[1]"}, "sampling_parameters: must be an object"),
        ("generate", {"sampling_parameters": '{"n": 2}'}, "'sampling_parameters.n' is not"),
        ("generate", {"sampling_parameters": '{"top_k": "x"}'}, "sampling_parameters.top_k"),
        ("generate", {"temprature": 1}, "did you mean 'temperature'"),
        ("generate", {"beam_width": 4}, "'beam_width' is not supported"),
        ("generate", {"end_id": 2}, "stop_token_ids"),
        ("generate", {"max_tokens": 600}, "max_tokens"),
        ("generate", {"text_input": "a" * 600}, "the prompt has 600 tokens"),
        ("generate", {"text_input": ""}, "the prompt is empty"),
        ("generate", {"structured_outputs": {"json": {"type": "robot"}}}, "structured_outputs"),
        ("generate_stream", {"stream": True, "exclude_input_in_output": False}, "exclude_input"),
        ("generate", {"text_input": ["a", "b"]}, "text_input"),
    ],
)
def test_what_is_refused(server: Server, path: str, fields: dict[str, Any], words: str) -> None:
    answer = server.post(f"{MODEL}/{path}", {"text_input": "a", "max_tokens": 2, **fields})
    assert words in error(answer)


@pytest.mark.parametrize(
    ("inputs", "rest", "words"),
    [
        ([tensor("text_input", "BYTES", 5)], {}, "text_input: its data"),
        ([tensor("text_input", "BYTES", ["a", "b"], (2,))], {}, "text_input: it has one element"),
        ([tensor("text_input", "BYTES", "a", (2,))], {}, "its shape has 2 elements"),
        ([tensor("text_input", "BYTES", "a", (-1,))], {}, "no negative sizes"),
        ([tensor("text_input", "BF16", "a")], {}, "'BF16' are not taken"),
        ([tensor("text_input", "BYTES", "a")] * 2, {}, "comes twice"),
        ([tensor("text_inputs", "BYTES", "a")], {}, "text_input"),
        ([{"name": "text_input", "datatype": "BYTES", "shape": [1]}], {}, "either data or"),
        ([tensor("id", "BYTES", "a")], {}, "no tensor's name"),
        ([tensor("text_input", "BYTES", "a"), tensor("stream", "BOOL", True)], {}, "stream:"),
        ([tensor("text_input", "BYTES", "a")], {"outputs": [{"name": "x"}]}, "no output 'x'"),
        (
            [tensor("text_input", "BYTES", "a")],
            {"outputs": [{"name": "text_output", "parameters": {"classification": 3}}]},
            "classification' is not supported",
        ),
        (
            [{"name": "text_input", "datatype": "BYTES", "shape": [1],
              "parameters": {"shared_memory_region": "r"}}],
            {},
            "shared_memory_region' is not supported",
        ),
        ([tensor("text_input", "BYTES", "a")], {"parameters": {"sequence_id": 4}}, "sequence_id"),
    ],
)  # fmt: skip
def test_tensors_that_are_refused(
    server: Server, inputs: list[Any], rest: dict[str, Any], words: str
) -> None:
    assert words in error(server.post(f"{MODEL}/infer", {"inputs": inputs, **rest}))


@pytest.mark.parametrize(
    ("data", "size", "header", "words"),
    [
        (b"\x05\0\0\0a", None, 0, "ends within a text"),
        (b"\x05\0", None, 0, "within the length"),
        (b"\x01\0\0\0\xff", None, 0, "no UTF-8"),
        (texts("a"), 4, 0, "ends within a text"),
        (texts("a"), 9, 0, "5 bytes are left"),
        (texts("a") + b"x", 5, 0, "belong to no tensor"),
        (texts("a"), None, 99999, "says"),
    ],
)
def test_bytes_that_are_refused(
    server: Server, data: bytes, size: int | None, header: int, words: str
) -> None:
    given = {"binary_data_size": len(data) if size is None else size}
    inputs = [{"name": "text_input", "datatype": "BYTES", "shape": [1], "parameters": given}]
    head = json.dumps({"inputs": inputs}).encode()
    headers = {HEADER: str(header or len(head))}
    answer = server.http.post(f"{MODEL}/infer", content=head + data, headers=headers)
    assert words in error(answer)


@pytest.mark.parametrize("path", ["/v2/models/other", f"{MODEL}/versions/2", "/v2/models/"])
def test_other_models_are_not_there(server: Server, path: str) -> None:
    assert server.http.get(f"{path}/ready").status_code == 404
    error(server.post(f"{path}/generate", TEXT), 404)


def test_fields_that_change_no_answer_are_named(server: Server) -> None:
    answer = server.post(f"{MODEL}/generate", {**TEXT, "pad_id": 2, "parameters": {"timeout": 5}})
    assert answer.headers["x-penstock-ignored"].split(", ") == ["pad_id", "parameters.timeout"]
    inputs = [tensor("text_input", "BYTES", "a"), tensor("pad_id", "INT32", 2)]
    answer = server.post(f"{MODEL}/infer", {"inputs": inputs, "parameters": {"priority": 1}})
    assert answer.headers["x-penstock-ignored"].split(", ") == ["pad_id", "parameters.priority"]


@given(st.lists(st.text(max_size=8), max_size=4))
def test_texts_come_back(values: list[str]) -> None:
    data = memoryview(elements.to_bytes(values, "BYTES"))
    assert elements.of_bytes(data, "BYTES", len(values), "x") == values


@given(st.binary(max_size=40), st.integers(0, 40), st.sampled_from(["BYTES", "INT32", "FP16"]))
def test_any_bytes_are_read_or_refused(data: bytes, size: int, datatype: str) -> None:
    given = {"binary_data_size": size}
    inputs = [{"name": "text_input", "datatype": datatype, "shape": [1], "parameters": given}]
    head = json.dumps({"inputs": inputs}).encode()
    decoder = InferDecoder(InferDecoder.envelopes(), TextDecoder(), len(head))
    with contextlib.suppress(ApiError):
        text = decoder.decode(head + data).request.text
        assert texts(text.text_input) == data
