"""KServe's protocol over gRPC: the same answers as over HTTP, by the same limits."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.http_client import Server, running

from penstock.errors import ConfigError
from penstock.server.kserve import elements
from penstock.server.kserve.grpc_options import grpc_options

grpc = pytest.importorskip("grpc", reason="grpcio is not installed")
messages = pytest.importorskip("penstock.server.kserve.grpc.messages")
serving_grpc = pytest.importorskip("penstock.server.kserve.grpc.server").serving_grpc

MODEL = "/v2/models/fake"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Client:
    """A client of the service, by its messages."""

    def __init__(self, port: int) -> None:
        self.channel = grpc.insecure_channel(f"127.0.0.1:{port}")

    def ask(self, name: str, request: Any = None, **options: Any) -> Any:
        if request is None:
            request = messages.MESSAGES[f"{name}Request"]()
        call = self.channel.unary_unary(
            f"/{messages.SERVICE}/{name}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=messages.MESSAGES[f"{name}Response"].FromString,
        )
        return call(request, timeout=30, **options)

    def stream(self, requests: Iterator[Any]) -> Any:
        call = self.channel.stream_stream(
            f"/{messages.SERVICE}/ModelStreamInfer",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=messages.MESSAGES["ModelStreamInferResponse"].FromString,
        )
        return call(requests, timeout=30)


def made(name: str, /, **fields: Any) -> Any:
    return messages.MESSAGES[name](**fields)


def asked(prompt: str = "Hi", count: int = 20, stream: bool = False, **fields: Any) -> Any:
    """A request for a text whose tensors are bytes."""
    request = made("ModelInferRequest", **{"model_name": "fake", **fields})
    for name, kind, data in (
        ("text_input", "BYTES", elements.to_bytes([prompt], "BYTES")),
        ("max_tokens", "INT32", struct.pack("<i", count)),
        ("stream", "BOOL", bytes([stream])),
        ("exclude_input_in_output", "BOOL", b"\x01"),
    ):
        request.inputs.add(name=name, datatype=kind, shape=[1])
        request.raw_input_contents.append(data)
    return request


def text(response: Any) -> str:
    names = [each.name for each in response.outputs]
    raw = memoryview(response.raw_output_contents[names.index("text_output")])
    (found,) = elements.of_bytes(raw, "BYTES", 1, "text_output")
    assert isinstance(found, str)
    return found


def expected(server: Server, count: int = 20) -> str:
    body = {"text_input": "Hi", "max_tokens": count, "exclude_input_in_output": True}
    found: str = server.post(f"{MODEL}/generate", body).json()["text_output"]
    return found


@pytest.fixture(scope="module")
def both(tokenizer_folder: Path) -> Iterator[tuple[Server, Client]]:
    port = free_port()
    with running(tokenizer_folder, 1, grpc_port=port) as server:
        client = Client(port)
        yield server, client
        client.channel.close()


def test_a_text(both: tuple[Server, Client]) -> None:
    server, client = both
    answer = client.ask("ModelInfer", asked(id="x"))
    assert (answer.model_name, answer.model_version, answer.id) == ("fake", "1", "x")
    assert text(answer) == expected(server)


def test_tensors_that_are_no_bytes(both: tuple[Server, Client]) -> None:
    server, client = both
    request = made("ModelInferRequest", model_name="fake", model_version="1")
    tensor = request.inputs.add(name="text_input", datatype="BYTES", shape=[1, 1])
    tensor.contents.bytes_contents.append(b"Hi")
    tensor = request.inputs.add(name="max_tokens", datatype="INT32", shape=[1])
    tensor.contents.int_contents.append(5)
    request.parameters["exclude_input_in_output"].bool_param = True
    request.outputs.add(name="num_output_tokens")
    request.outputs.add(name="text_output")
    answer = client.ask("ModelInfer", request)
    assert text(answer) == expected(server, 5)
    assert answer.raw_output_contents[1] == struct.pack("<I", 5)


def test_streams_of_several_requests(both: tuple[Server, Client]) -> None:
    server, client = both
    requests = [
        asked(id="a", stream=True),
        asked(id="b", stream=True, count=9),
        asked(id="c"),
        asked(id="d", count=600),
    ]
    found: dict[str, list[Any]] = {}
    for each in client.stream(iter(requests)):
        found.setdefault(each.infer_response.id, []).append(each)
    assert sorted(found) == ["a", "b", "c", "d"]
    for name, count in (("a", 20), ("b", 9), ("c", 20)):
        parts = [each.infer_response for each in found[name]]
        assert "".join(map(text, parts)) == expected(server, count)
        ends = [part.parameters["triton_final_response"].bool_param for part in parts]
        assert ends == [False] * (len(parts) - 1) + [True]
    assert len(found["a"]) > 2
    assert len(found["c"]) == 1
    (failed,) = found["d"]
    assert "max_tokens" in failed.error_message


def test_a_stream_that_is_left_is_ended(both: tuple[Server, Client]) -> None:
    server, client = both
    held = threading.Event()

    def requests() -> Iterator[Any]:
        yield asked(count=500, stream=True)
        held.wait(30)

    stream = client.stream(requests())
    next(stream)
    stream.cancel()
    held.set()
    for _ in range(500):
        if server.metric("http_requests_open") == 0:
            return
    raise AssertionError("the request is still open")


def test_what_the_server_tells(both: tuple[Server, Client]) -> None:
    server, client = both
    get = server.http.get
    assert client.ask("ServerLive").live
    assert client.ask("ServerReady").ready
    named = {"name": "fake", "version": "1"}
    assert client.ask("ModelReady", made("ModelReadyRequest", **named)).ready
    assert not client.ask("ModelReady", made("ModelReadyRequest", name="other")).ready
    assert list(client.ask("ServerMetadata").extensions) == get("/v2").json()["extensions"]
    model = client.ask("ModelMetadata", made("ModelMetadataRequest", **named))
    told = [
        {"name": each.name, "datatype": each.datatype, "shape": list(each.shape)}
        for each in model.inputs
    ]
    assert told == get(MODEL).json()["inputs"]
    config = client.ask("ModelConfig", made("ModelConfigRequest", **named)).config
    assert config.model_transaction_policy.decoupled
    assert config.input[0].data_type == 13  # a text, as Triton numbers types
    (counted,) = client.ask("ModelStatistics").model_stats
    assert counted.inference_count == counted.inference_stats.success.count > 0
    (entry,) = client.ask("RepositoryIndex").models
    assert (entry.name, entry.state) == ("fake", "READY")
    client.ask("RepositoryModelLoad", made("RepositoryModelLoadRequest", model_name="fake"))


@pytest.mark.parametrize(
    ("name", "request_of", "code", "words"),
    [
        ("ModelInfer", lambda: asked(model_name="other"), "NOT_FOUND", "does not exist"),
        ("ModelInfer", lambda: asked(model_version="2"), "NOT_FOUND", "no version"),
        ("ModelInfer", lambda: asked(count=600), "INVALID_ARGUMENT", "max_tokens"),
        ("ModelInfer", lambda: asked(stream=True), "INVALID_ARGUMENT", "stream"),
        ("ModelInfer", lambda: asked("a" * (5 << 20)), "RESOURCE_EXHAUSTED", "larger than max"),
        ("ModelMetadata", lambda: made("ModelMetadataRequest", name="x"), "NOT_FOUND", "'x'"),
        (
            "RepositoryModelUnload",
            lambda: made("RepositoryModelUnloadRequest", model_name="fake"),
            "INVALID_ARGUMENT",
            "not unloaded",
        ),
    ],
)
def test_what_is_refused(
    both: tuple[Server, Client], name: str, request_of: Any, code: str, words: str
) -> None:
    _, client = both
    with pytest.raises(grpc.RpcError) as raised:
        client.ask(name, request_of())
    assert raised.value.code() == grpc.StatusCode[code]
    assert words in raised.value.details()


def test_a_port_that_cannot_be_had() -> None:
    with pytest.raises(ConfigError, match="from 1 to 65535"):
        grpc_options("127.0.0.1", 70_000)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        options = grpc_options("127.0.0.1", taken.getsockname()[1])
        assert options is not None

        async def serve() -> None:
            async with serving_grpc(nothing, options, 1000, None):
                pass

        with pytest.raises(ConfigError, match="choose another --grpc-port"):
            asyncio.run(serve())


async def nothing(scope: Any, receive: Any, send: Any) -> None:
    """An application that answers nothing."""


def test_keys_are_metadata(tokenizer_folder: Path) -> None:
    port = free_port()
    with running(tokenizer_folder, 1, grpc_port=port, api_keys="secret"):
        client = Client(port)
        assert client.ask("ServerReady").ready
        with pytest.raises(grpc.RpcError) as raised:
            client.ask("ModelInfer", asked())
        assert raised.value.code() == grpc.StatusCode.UNAUTHENTICATED
        key = (("authorization", "Bearer secret"),)
        assert client.ask("ModelInfer", asked(), metadata=key).outputs
        client.channel.close()
