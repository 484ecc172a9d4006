"""Triton's own client over HTTP: texts as tensors, metadata, health, statistics, the repository.

Its client has no method for generate_stream, which is asked as its documents ask it.
"""

from __future__ import annotations

import json

import checks
import numpy
import tritonclient.http as triton
import urllib3
from checks import MODEL, TOKENS, attempt
from tritonclient.utils import InferenceServerException

PROMPT = "import os"
URL = checks.URL.removesuffix("/v1")
client = triton.InferenceServerClient(
    URL.removeprefix("http://"), network_timeout=100, connection_timeout=100
)


def tensor(name: str, datatype: str, value: object, binary: bool) -> triton.InferInput:
    found = triton.InferInput(name, [1], datatype)
    kind = {"BYTES": numpy.object_, "INT32": numpy.int32, "FP32": numpy.float32, "BOOL": bool}
    found.set_data_from_numpy(numpy.array([value], dtype=kind[datatype]), binary_data=binary)
    return found


def inputs(binary: bool = True) -> list[triton.InferInput]:
    return [
        tensor("text_input", "BYTES", PROMPT, binary),
        tensor("max_tokens", "INT32", TOKENS, binary),
        tensor("temperature", "FP32", 0.0, binary),
        tensor("exclude_input_in_output", "BOOL", True, binary),
    ]


def text(result: triton.InferResult) -> str:
    found: bytes | str = result.as_numpy("text_output").item()
    return found.decode() if isinstance(found, bytes) else found


def events(body: dict[str, object]) -> list[dict[str, str]]:
    url = f"{URL}/v2/models/{MODEL}/generate_stream"
    answer = urllib3.request("POST", url, json=body, timeout=100)
    assert answer.status == 200, answer.data
    parts = answer.data.decode().split("\n\n")
    return [json.loads(part.removeprefix("data: ")) for part in parts if part]


def forms() -> None:
    """Tensors of both forms in both directions say the same."""
    said = {
        text(
            client.infer(
                MODEL,
                inputs(given),
                outputs=[triton.InferRequestedOutput("text_output", binary_data=asked)],
            )
        )
        for given in (False, True)
        for asked in (False, True)
    }
    assert len(said) == 1, said
    assert said.pop()


def all_outputs() -> None:
    options = json.dumps({"max_tokens": str(TOKENS), "temperature": "0"})
    given = [
        tensor("text_input", "BYTES", PROMPT, True),
        tensor("sampling_parameters", "BYTES", options, True),
        tensor("return_num_output_tokens", "BOOL", True, True),
    ]
    result = client.infer(MODEL, given, request_id="7", model_version="1")
    assert text(result).startswith(PROMPT)
    assert result.as_numpy("num_output_tokens").item() <= TOKENS
    assert result.get_response()["id"] == "7"


def several() -> None:
    waiting = [client.async_infer(MODEL, inputs()) for _ in range(4)]
    assert len({text(each.get_result()) for each in waiting}) == 1


def streams() -> None:
    body = {"text_input": PROMPT, "max_tokens": TOKENS, "temperature": 0, "stream": True}
    parts = events(body)
    assert len(parts) > 1
    assert "".join(part["text_output"] for part in parts) == text(client.infer(MODEL, inputs()))


def health() -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready(MODEL)
    assert client.is_model_ready(MODEL, "1")
    assert not client.is_model_ready("other")


def told() -> None:
    assert client.get_server_metadata()["name"] == "penstock"
    names = [each["name"] for each in client.get_model_metadata(MODEL)["inputs"]]
    assert "text_input" in names
    assert client.get_model_config(MODEL)["model_transaction_policy"]["decoupled"]


def counted() -> None:
    def answers() -> int:
        (model,) = client.get_inference_statistics(MODEL)["model_stats"]
        found: int = model["inference_count"]
        return found

    before = answers()
    client.infer(MODEL, inputs())
    assert answers() == before + 1
    assert client.get_inference_statistics()["model_stats"]


def repository() -> None:
    (model,) = client.get_model_repository_index()
    assert (model["name"], model["state"]) == (MODEL, "READY")
    client.load_model(MODEL)
    try:
        client.unload_model(MODEL)
    except InferenceServerException:
        return
    raise AssertionError("unloaded")


def errors() -> None:
    for name, given in (
        ("other", inputs()),
        (MODEL, [*inputs(), tensor("colour", "INT32", 1, True)]),
    ):
        try:
            client.infer(name, given)
        except InferenceServerException:
            continue
        raise AssertionError("no error")


attempt("infer: tensors in JSON and in bytes, both ways", forms)
attempt("infer: options as JSON text, counts, an id", all_outputs)
attempt("infer: four at once", several)
attempt("generate_stream", streams)
attempt("health", health)
attempt("metadata and configuration", told)
attempt("statistics", counted)
attempt("repository", repository)
attempt("an error is one of the client's own", errors)
