"""The handlers of files and batches, and their endpoints."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Protocol, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import FileResponse, Response

from penstock.server.bodies import Bodies
from penstock.server.body_decoder import BodyDecoder, Decoded
from penstock.server.errors import RETRY_AFTER_S, ApiError, unavailable
from penstock.server.open_requests import OpenRequest
from penstock.server.openai.batches.batches import Batches
from penstock.server.openai.batches.form import read_form
from penstock.server.openai.batches.input import window_seconds
from penstock.server.openai.batches.protocol import (
    ENDED,
    ENDPOINTS,
    Batch,
    BatchList,
    BatchRequest,
    FileDeleted,
    FileList,
    FileObject,
)
from penstock.server.openai.batches.runner import BatchRunner
from penstock.server.openai.batches.store import BatchStore, Owner
from penstock.server.openapi import Endpoint, Schema
from penstock.server.read_body import read_any_body

FILES: Final = "/v1/files"
BATCHES: Final = "/v1/batches"
_MOST_FILES, _MOST_BATCHES = 10_000, 100
_CONTENT: Final = "application/octet-stream"
"""The type of every file's content."""
_FORM: Final[dict[str, Schema]] = {
    "file": {
        "type": "string",
        "format": "binary",
        "description": "Lines of JSON, each a request of a batch.",
    },
    "purpose": {"enum": ["batch"]},
}
"""The parts of the form that a file is uploaded in, by their names."""


class _Upload(msgspec.Struct, frozen=True):
    filename: str
    data: bytes


class _UploadDecoder:
    """Reads a form with the file of a batch."""

    def __init__(self, content_type: str) -> None:
        self._content_type = content_type

    def decode(self, body: bytes) -> Decoded[_Upload]:
        parts = read_form(self._content_type, body)
        for name in parts:
            if name not in ("file", "purpose"):
                raise ApiError(
                    400,
                    f"unknown field {name!r} of the form; leave it out: files are kept until they "
                    "are deleted",
                    param=name[:40],
                    code="unknown_parameter",
                )
        for name in ("file", "purpose"):
            if name not in parts:
                raise ApiError(400, f"the form has no {name}", param=name)
        if parts["purpose"].data != b"batch":
            raise ApiError(400, "purpose must be batch: there is no other here", param="purpose")
        file = parts["file"]
        if not file.data.strip():
            raise ApiError(400, "the file is empty", param="file")
        return Decoded(_Upload(file.filename or "file", file.data), (), ())


class BatchHandlers:
    """The handlers. Files and batches of a key's holder are found with that key alone."""

    def __init__(self, bodies: Bodies, batches: Batches) -> None:
        self._bodies = bodies
        self._batches = batches
        self._requests = BodyDecoder(BatchRequest)

    async def upload(self, request: Request) -> Response:
        store = self._store
        decoder = _UploadDecoder(request.headers.get("content-type", ""))
        try:
            upload = (await self._bodies.decoded(request, decoder, read_any_body)).request
        except ApiError as error:
            if error.status != 413:
                raise
            why = f"{error}; split the file, and send a batch of each part"
            raise ApiError(413, why, param="file", close=True) from None
        file = FileObject(
            id=f"file-{uuid.uuid4().hex}",
            bytes=len(upload.data),
            created_at=int(time.time()),
            filename=upload.filename,
            purpose="batch",
        )
        with _disk():
            await store.add_file(file, _owner(request), upload.data)
        return _json(file)

    async def files(self, request: Request) -> Response:
        owner, purpose = _owner(request), request.query_params.get("purpose")
        found = [
            kept.file
            for kept in self._store.files.values()
            if kept.owner.owns(owner) and purpose in (None, kept.file.purpose)
        ]
        page, more = _page(request, found, _MOST_FILES)
        first, last = _ends(page)
        return _json(FileList(data=page, first_id=first, last_id=last, has_more=more))

    async def file(self, request: Request) -> Response:
        return _json(self._file(request))

    async def content(self, request: Request) -> Response:
        path = self._store.data(self._file(request).id)
        return FileResponse(path, media_type=_CONTENT)

    async def delete(self, request: Request) -> Response:
        file, runner = self._file(request), self._batches.runner
        if runner is not None and runner.uses(file.id):
            raise ApiError(
                409, f"a batch reads {file.id}; cancel it, or wait for its end", code="file_in_use"
            )
        with _disk():
            self._store.delete_file(file.id)
        return _json(FileDeleted(id=file.id))

    async def create(self, request: Request) -> Response:
        store = self._store
        body = (await self._bodies.decoded(request, self._requests)).request
        owner, now = _owner(request), int(time.time())
        kept = store.files.get(body.input_file_id)
        if kept is None or not kept.owner.owns(owner):
            raise _no_file(body.input_file_id, "input_file_id", 400)
        if kept.file.purpose != "batch":
            raise ApiError(
                400,
                f"input_file_id: {kept.file.id} holds answers; upload the requests",
                param="input_file_id",
            )
        if body.endpoint not in ENDPOINTS:
            allowed = ", ".join(ENDPOINTS)
            raise ApiError(
                400, f"endpoint must be one of {allowed}, not {body.endpoint!r}", param="endpoint"
            )
        window = window_seconds(body.completion_window)
        if window is None:
            raise ApiError(
                400,
                "completion_window must be a time of at most 14 days such as 24h, 90m or 30s, not "
                f"{body.completion_window!r}",
                param="completion_window",
            )
        batch = Batch(
            id=f"batch_{uuid.uuid4().hex}",
            endpoint=body.endpoint,
            input_file_id=body.input_file_id,
            completion_window=body.completion_window,
            status="validating",
            created_at=now,
            expires_at=now + window,
            metadata=body.metadata,
        )
        with _disk():
            self._running.add(batch, owner)
        return _json(batch)

    async def batches(self, request: Request) -> Response:
        owner = _owner(request)
        found = [kept.batch for kept in self._store.batches.values() if kept.owner.owns(owner)]
        page, more = _page(request, found, _MOST_BATCHES)
        first, last = _ends(page)
        return _json(BatchList(data=page, first_id=first, last_id=last, has_more=more))

    async def batch(self, request: Request) -> Response:
        return _json(self._batch(request))

    async def cancel(self, request: Request) -> Response:
        batch = self._batch(request)
        if batch.status in ENDED:
            raise ApiError(
                409, f"{batch.id} is {batch.status}: nothing is left to cancel", code="batch_ended"
            )
        with _disk():
            self._running.cancel(batch.id)
        return _json(self._batch(request))

    @property
    def _store(self) -> BatchStore:
        """Raises ApiError where nothing is kept."""
        store = self._batches.store
        if store is None:
            raise ApiError(
                400,
                "this server keeps no files and runs no batches; start it with --batch-dir FOLDER",
                code="unsupported_endpoint",
            )
        return store

    @property
    def _running(self) -> BatchRunner:
        runner = self._batches.runner
        if runner is None:
            raise unavailable("the server is shutting down", "shutting_down", RETRY_AFTER_S)
        return runner

    def _file(self, request: Request) -> FileObject:
        asked = request.path_params["file_id"]
        kept = self._store.files.get(asked)
        if kept is None or not kept.owner.owns(_owner(request)):
            raise _no_file(asked, "file_id", 404)
        return kept.file

    def _batch(self, request: Request) -> Batch:
        asked = request.path_params["batch_id"]
        kept = self._store.batches.get(asked)
        if kept is None or not kept.owner.owns(_owner(request)):
            raise ApiError(404, f"there is no batch {asked[:80]!r}", param="batch_id")
        return kept.batch

    def endpoints(self) -> list[Endpoint]:
        one, page = FILES + "/{file_id}", {"limit": {"type": "integer", "minimum": 1}}
        after = {"after": {"type": "string"}}
        order = {"order": {"enum": ["asc", "desc"]}}
        run = BATCHES + "/{batch_id}"
        upload = "Keep a file of requests, uploaded as a form with file and purpose=batch."
        content = "The content of a file."
        return [
            Endpoint("POST", FILES, self.upload, upload, FileObject, form=_FORM),
            Endpoint(
                "GET",
                FILES,
                self.files,
                "The files that are kept.",
                FileList,
                query={**page, **after, **order, "purpose": {"type": "string"}},
            ),
            Endpoint("GET", one, self.file, "What is known of a file.", FileObject),
            Endpoint("DELETE", one, self.delete, "Delete a file.", FileDeleted),
            Endpoint("GET", one + "/content", self.content, content, None, text=_CONTENT),
            Endpoint("POST", BATCHES, self.create, "Run a file's requests.", Batch, BatchRequest),
            Endpoint(
                "GET",
                BATCHES,
                self.batches,
                "The batches, the newest first.",
                BatchList,
                query={**page, **after, **order},
            ),
            Endpoint("GET", run, self.batch, "A batch and how far it is.", Batch),
            Endpoint("POST", run + "/cancel", self.cancel, "Cancel a batch.", Batch),
        ]


class _Listed(Protocol):
    @property
    def id(self) -> str: ...

    @property
    def created_at(self) -> int: ...


L = TypeVar("L", bound=_Listed)


def _page(request: Request, found: Sequence[L], most: int) -> tuple[list[L], bool]:
    """What a client asks of a list, and whether more follows. Raises ApiError."""
    asked = request.query_params
    order, after = asked.get("order", "desc"), asked.get("after")
    if order not in ("asc", "desc"):
        raise ApiError(400, "order must be asc or desc", param="order")
    text = asked.get("limit", "20" if most == _MOST_BATCHES else str(most))
    if not text.isascii() or not text.isdecimal() or not 1 <= int(text[:9]) <= most:
        raise ApiError(400, f"limit must be from 1 to {most}", param="limit")
    ordered = sorted(found, key=lambda each: (each.created_at, each.id), reverse=order == "desc")
    if after is not None:
        at = next((i for i, each in enumerate(ordered) if each.id == after), None)
        if at is None:
            raise ApiError(400, f"after: there is no {after[:80]!r} in this list", param="after")
        ordered = ordered[at + 1 :]
    limit = int(text)
    return ordered[:limit], len(ordered) > limit


def _ends(page: Sequence[_Listed]) -> tuple[str | None, str | None]:
    return (page[0].id, page[-1].id) if page else (None, None)


def _owner(request: Request) -> Owner:
    opened = OpenRequest.of(request.scope)
    return Owner(opened.key, opened.caller.name, opened.caller.weight)


@contextmanager
def _disk() -> Iterator[None]:
    """Raise what the disk refuses as an ApiError."""
    try:
        yield
    except OSError as error:
        raise ApiError(
            507, f"it cannot be kept: {error.strerror}; delete files, or tell the operator"
        ) from error


def _no_file(asked: str, param: str, status: int) -> ApiError:
    return ApiError(status, f"there is no file {asked[:80]!r}", param=param)


def _json(value: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
