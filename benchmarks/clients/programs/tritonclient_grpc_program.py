"""Triton's own client over gRPC: texts as tensors, streams, and what the server tells."""

from __future__ import annotations

import queue
import sys
from urllib.parse import urlsplit

import checks
import numpy
import tritonclient.grpc as triton
from checks import MODEL, TOKENS, attempt
from tritonclient.utils import InferenceServerException

PROMPT = "import os"
PORT = int(sys.argv[4]) if len(sys.argv) > 4 else 8701  # as in sdk_run.py
client = triton.InferenceServerClient(f"{urlsplit(checks.URL).hostname}:{PORT}")


def tensor(name: str, datatype: str, value: object) -> triton.InferInput:
    found = triton.InferInput(name, [1], datatype)
    kind = {"BYTES": numpy.object_, "INT32": numpy.int32, "FP32": numpy.float32, "BOOL": bool}
    found.set_data_from_numpy(numpy.array([value], dtype=kind[datatype]))
    return found


def inputs(stream: bool = False, count: int = TOKENS) -> list[triton.InferInput]:
    return [
        tensor("text_input", "BYTES", PROMPT),
        tensor("max_tokens", "INT32", count),
        tensor("temperature", "FP32", 0.0),
        tensor("exclude_input_in_output", "BOOL", True),
        tensor("stream", "BOOL", stream),
    ]


def text(result: triton.InferResult) -> str:
    found: bytes = result.as_numpy("text_output").item()
    return found.decode()


def whole() -> None:
    outputs = [
        triton.InferRequestedOutput("text_output"),
        triton.InferRequestedOutput("num_output_tokens"),
    ]
    result = client.infer(MODEL, inputs(), outputs=outputs, request_id="7", model_version="1")
    assert text(result)
    assert result.as_numpy("num_output_tokens").item() <= TOKENS
    assert result.get_response().id == "7"


def streams() -> None:
    """Two requests of one stream, whose answers are those that are asked for whole."""
    answers: queue.Queue[tuple[triton.InferResult, InferenceServerException | None]] = queue.Queue()
    client.start_stream(lambda result, error: answers.put((result, error)))
    counts = {"a": TOKENS, "b": 5}
    for name, count in counts.items():
        client.async_stream_infer(
            MODEL,
            inputs(True, count),
            request_id=name,
            enable_empty_final_response=True,
        )
    said = dict.fromkeys(counts, "")
    ended: set[str] = set()
    while ended != set(counts):
        result, error = answers.get(timeout=100)
        assert error is None, error
        response = result.get_response()
        said[response.id] += text(result)
        if response.parameters["triton_final_response"].bool_param:
            ended.add(response.id)
    client.stop_stream()
    for name, count in counts.items():
        assert said[name] == text(client.infer(MODEL, inputs(count=count)))


def health() -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready(MODEL)
    assert not client.is_model_ready("other")


def told() -> None:
    assert client.get_server_metadata().name == "penstock"
    assert client.get_model_metadata(MODEL).outputs[0].name == "text_output"
    assert client.get_model_config(MODEL).config.model_transaction_policy.decoupled


def counted() -> None:
    before = client.get_inference_statistics(MODEL).model_stats[0].inference_count
    client.infer(MODEL, inputs())
    after = client.get_inference_statistics(MODEL).model_stats[0].inference_count
    assert after == before + 1


def repository() -> None:
    (model,) = client.get_model_repository_index().models
    assert (model.name, model.state) == (MODEL, "READY")
    client.load_model(MODEL)
    try:
        client.unload_model(MODEL)
    except InferenceServerException:
        return
    raise AssertionError("unloaded")


def errors() -> None:
    for name, given, code in (
        ("other", inputs(), "NOT_FOUND"),
        (MODEL, [*inputs(), tensor("colour", "INT32", 1)], "INVALID_ARGUMENT"),
    ):
        try:
            client.infer(name, given)
        except InferenceServerException as error:
            if error.status() == f"StatusCode.{code}":
                continue
        raise AssertionError("another error, or none")


attempt("infer", whole)
attempt("a stream of two requests", streams)
attempt("health", health)
attempt("metadata and configuration", told)
attempt("statistics", counted)
attempt("repository", repository)
attempt("an error is one of the client's own", errors)
