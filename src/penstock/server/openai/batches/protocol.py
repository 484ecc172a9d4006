"""The bodies and answers of ``/v1/files`` and ``/v1/batches``, and the lines of batches' files."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from penstock.server.openai.paths import (
    CHAT,
    CLASSIFY,
    COMPLETIONS,
    EMBEDDINGS,
    RERANK,
    RESPONSES,
    SCORE,
)

ENDPOINTS = (CHAT, COMPLETIONS, EMBEDDINGS, RESPONSES, CLASSIFY, SCORE, RERANK)
"""The paths that a batch may ask."""

Status = Literal[
    "validating",
    "failed",
    "in_progress",
    "finalizing",
    "completed",
    "expired",
    "cancelling",
    "cancelled",
]
ENDED = ("failed", "completed", "expired", "cancelled")


class FileObject(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    filename: str
    purpose: Literal["batch", "batch_output"]
    status: Literal["processed"] = "processed"


class FileList(msgspec.Struct, frozen=True, kw_only=True):
    object: Literal["list"] = "list"
    data: list[FileObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


class FileDeleted(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["file"] = "file"
    deleted: bool = True


class BatchRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The body of ``POST /v1/batches``."""

    input_file_id: str
    endpoint: str
    completion_window: str
    """How long it may take, such as ``24h``, ``90m`` or ``30s``; what is not done then is not done
    at all."""
    metadata: dict[str, str] | None = None


class BatchFault(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong with a line of the input file."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


class BatchFaults(msgspec.Struct, frozen=True, kw_only=True):
    object: Literal["list"] = "list"
    data: list[BatchFault]


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    total: int = 0
    completed: int = 0
    failed: int = 0


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["batch"] = "batch"
    endpoint: str
    errors: BatchFaults | None = None
    input_file_id: str
    completion_window: str
    status: Status
    output_file_id: str | None = None
    error_file_id: str | None = None
    created_at: int
    in_progress_at: int | None = None
    expires_at: int
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    request_counts: Counts = Counts()
    metadata: dict[str, str] | None = None


class BatchList(msgspec.Struct, frozen=True, kw_only=True):
    object: Literal["list"] = "list"
    data: list[Batch]
    first_id: str | None
    last_id: str | None
    has_more: bool


class BatchLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One line of an input file."""

    custom_id: str
    method: Literal["POST"]
    url: str
    body: dict[str, Any]


class LineResponse(msgspec.Struct, frozen=True, kw_only=True):
    status_code: int
    request_id: str
    body: msgspec.Raw


class LineError(msgspec.Struct, frozen=True, kw_only=True):
    code: str
    message: str


class BatchResult(msgspec.Struct, frozen=True, kw_only=True):
    """One line of an output file, or of an error file."""

    id: str
    custom_id: str
    response: LineResponse | None
    error: LineError | None = None
