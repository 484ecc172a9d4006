"""The calls of the protocol's service."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, Final, TypeAlias
from urllib.parse import unquote

import grpc
import msgspec
from google.protobuf.json_format import ParseDict

from penstock.server.bodies import MAX_IN_LOOP_BYTES
from penstock.server.errors import ApiError
from penstock.server.kserve.grpc.calls import Application, Caller, CallFailed, items
from penstock.server.kserve.grpc.messages import MESSAGES, SERVICE
from penstock.server.kserve.grpc.tensors import MessageDecoder, response
from penstock.server.kserve.input import merged
from penstock.server.kserve.protocol import GeneratedText, TextRequest
from penstock.server.kserve.tensors import Inference

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
_Call = Callable[[Any, Caller], Awaitable[Any]]

_PASSED: Final = frozenset(
    ("authorization", "x-api-key", "api-key", "x-request-id", "x-request-timeout", "traceparent",
     "tracestate")
)  # fmt: skip
"""Metadata that is passed on as headers."""
_RUNNING: Final = "None"
"""The finish reason of an answer that goes on."""
MAX_OPEN: Final = 256
"""Most requests of one stream that are open at once; further ones wait to be read."""


class Service:
    """The service, over the HTTP application."""

    def __init__(self, application: Application) -> None:
        self._application = application
        self._decoder = MessageDecoder()

    def handlers(self) -> grpc.GenericRpcHandler:
        """The handlers of all calls."""
        calls: dict[str, _Call] = {
            "ServerLive": self._told("/v2/health/live", "ServerLiveResponse"),
            "ServerReady": self._ready_of(lambda request: "/v2/health/ready", "ServerReady"),
            "ModelReady": self._ready_of(lambda request: f"{_path(request)}/ready", "ModelReady"),
            "ServerMetadata": self._told("/v2", "ServerMetadataResponse"),
            "ModelMetadata": self._metadata,
            "ModelConfig": self._config,
            "ModelStatistics": self._statistics,
            "RepositoryIndex": self._index,
            "RepositoryModelLoad": self._load,
            "RepositoryModelUnload": self._unload,
            "ModelInfer": self._infer,
        }
        handlers = {
            name: grpc.unary_unary_rpc_method_handler(
                _answered(call),
                request_deserializer=MESSAGES[f"{name}Request"].FromString,
                response_serializer=MESSAGES[f"{name}Response"].SerializeToString,
            )
            for name, call in calls.items()
        }
        handlers["ModelStreamInfer"] = grpc.stream_stream_rpc_method_handler(
            self._stream,
            request_deserializer=MESSAGES["ModelInferRequest"].FromString,
            response_serializer=MESSAGES["ModelStreamInferResponse"].SerializeToString,
        )
        return grpc.method_handlers_generic_handler(SERVICE, handlers)

    def _told(self, path: str, answer: str) -> _Call:
        async def call(request: Any, caller: Caller) -> Any:
            return _message(answer, await self._application.ask(caller, "GET", path))

        return call

    def _ready_of(self, path: Callable[[Any], str], name: str) -> _Call:
        async def call(request: Any, caller: Caller) -> Any:
            try:
                found = await self._application.ask(caller, "GET", path(request))
            except CallFailed as failure:
                if failure.status not in (404, 503):
                    raise
                found = {"ready": False}
            return _message(f"{name}Response", found)

        return call

    async def _metadata(self, request: Any, caller: Caller) -> Any:
        found = await self._application.ask(caller, "GET", _path(request))
        return _message("ModelMetadataResponse", found)

    async def _config(self, request: Any, caller: Caller) -> Any:
        found = await self._application.ask(caller, "GET", f"{_path(request)}/config")
        return _message("ModelConfigResponse", {"config": found})

    async def _statistics(self, request: Any, caller: Caller) -> Any:
        path = f"{_path(request)}/stats" if request.name else "/v2/models/stats"
        return _message("ModelStatisticsResponse", await self._application.ask(caller, "GET", path))

    async def _index(self, request: Any, caller: Caller) -> Any:
        body = msgspec.json.encode({"ready": request.ready})
        found = await self._application.ask(caller, "POST", "/v2/repository/index", body)
        return _message("RepositoryIndexResponse", {"models": found})

    async def _load(self, request: Any, caller: Caller) -> Any:
        # Only the names matter: any parameter is refused.
        body = msgspec.json.encode({"parameters": dict.fromkeys(request.parameters, "")})
        path = f"/v2/repository/models/{request.model_name}/load"
        await self._application.ask(caller, "POST", path, body)
        return MESSAGES["RepositoryModelLoadResponse"]()

    async def _unload(self, request: Any, caller: Caller) -> Any:
        path = f"/v2/repository/models/{request.model_name}/unload"
        await self._application.ask(caller, "POST", path)
        return MESSAGES["RepositoryModelUnloadResponse"]()

    async def _infer(self, request: Any, caller: Caller) -> Any:
        inference = await self._decoded(request)
        body = msgspec.json.encode(inference.text)
        path = f"{_path_of(request)}/generate"
        found = await self._application.ask(caller, "POST", path, body)
        return response(msgspec.convert(found, GeneratedText), inference)

    async def _decoded(self, request: Any) -> Inference:
        if request.ByteSize() <= MAX_IN_LOOP_BYTES:
            return self._decoder.decode(request)
        return await asyncio.to_thread(self._decoder.decode, request)

    async def _stream(self, requests: AsyncIterator[Any], context: Context) -> AsyncIterator[Any]:
        """Answer all requests of a stream, each as it comes; an error is the answer to one
        request, and ends no stream."""
        caller = _caller(context)
        answers: asyncio.Queue[Any] = asyncio.Queue(1)  # a slow client holds its answers up
        places = asyncio.Semaphore(MAX_OPEN)

        async def answer(request: Any) -> None:
            try:
                async with aclosing(self._responses(request, caller)) as responses:
                    async for each in responses:
                        await answers.put(each)
            finally:
                places.release()

        async def answer_all() -> None:
            async with asyncio.TaskGroup() as group:
                async for request in requests:
                    await places.acquire()
                    group.create_task(answer(request))

        working = asyncio.ensure_future(answer_all())
        try:
            async with aclosing(items(answers, working)) as found:
                async for each in found:
                    yield each
        finally:
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)

    async def _responses(self, request: Any, caller: Caller) -> AsyncGenerator[Any, None]:
        """The answers to one request of a stream, of which one error may be the last."""
        made = MESSAGES["ModelStreamInferResponse"]
        try:
            inference = await self._decoded(request)
            asked = merged(inference.text)
            # Which response is the last is seen by the reason for the end.
            with_end = msgspec.structs.replace(asked, return_finish_reason=True)
            values = {name: getattr(with_end, name) for name in with_end.__struct_fields__}
            text = inference.text
            body = msgspec.json.encode(
                TextRequest(text_input=text.text_input, id=text.id, **values)
            )
            path = f"{_path_of(request)}/generate_stream"
            async with aclosing(self._application.parts(caller, "POST", path, body)) as parts:
                async for part in parts:
                    answer = _event(part)
                    final = answer.finish_reason != _RUNNING
                    if not asked.return_finish_reason:
                        answer = msgspec.structs.replace(answer, finish_reason=msgspec.UNSET)
                    yield made(infer_response=response(answer, inference, final))
        except (ApiError, CallFailed) as error:
            # Clients know by the id which request it was of.
            failed = made(error_message=str(error))
            failed.infer_response.id = request.id
            yield failed


def _event(part: bytes) -> GeneratedText:
    """The answer in an event. Raises CallFailed for an error."""
    found = msgspec.json.decode(part.removeprefix(b"data: "))
    if "error" in found:
        raise CallFailed(500, found["error"])
    return msgspec.convert(found, GeneratedText)


def _answered(call: _Call) -> Callable[[Any, Context], Awaitable[Any]]:
    """``call`` as gRPC asks for it, with errors as its codes."""

    async def answer(request: Any, context: Context) -> Any:
        try:
            return await call(request, _caller(context))
        except ApiError as error:
            failure = CallFailed(error.status, str(error))
        except CallFailed as failed:
            failure = failed
        await context.abort(grpc.StatusCode[failure.code], str(failure))

    return answer


def _caller(context: Context) -> Caller:
    passed = [
        (name, value)
        for name, value in context.invocation_metadata() or ()
        if name in _PASSED and isinstance(value, str)
    ]
    return Caller(passed, _address(context.peer()))


def _address(peer: str) -> tuple[str, int] | None:
    """The address of ``ipv4:HOST:PORT`` or ``ipv6:[HOST]:PORT``, percent-encoded."""
    kind, _, rest = unquote(peer).partition(":")
    host, _, port = rest.rpartition(":")
    if kind not in ("ipv4", "ipv6") or not port.isdecimal():
        return None
    return host.strip("[]"), int(port)


def _path(request: Any) -> str:
    version = f"/versions/{request.version}" if request.version else ""
    return f"/v2/models/{request.name}{version}"


def _path_of(request: Any) -> str:
    """The path of the model that a ``ModelInferRequest`` asks."""
    version = f"/versions/{request.model_version}" if request.model_version else ""
    return f"/v2/models/{request.model_name}{version}"


def _message(name: str, value: Any) -> Any:
    return ParseDict(value, MESSAGES[name](), ignore_unknown_fields=True)
