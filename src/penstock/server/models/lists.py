"""What the server says of its models in each dialect: which there are, and which are loaded."""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec

from penstock.repository.loaded import ModelStatus
from penstock.repository.slot import State
from penstock.server.kserve.api import VERSION
from penstock.server.kserve.models import RepositoryModel
from penstock.server.models.served import ServedModel
from penstock.server.ollama.models import LoadedModel, LocalModel, ModelDetails

Status = ModelStatus[ServedModel]

_NEVER: Final = "9999-12-31T23:59:59Z"
_NO_DETAILS: Final = ModelDetails(family="", families=[], parameter_size="")


class LoadState(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Where a model is between its files and memory; ``value`` as llama-server's router has it."""

    value: Literal["unloaded", "loading", "loaded", "failed"]
    state: State
    """The same, as it is here."""
    phase: str = ""
    """What its loading does now."""
    failure: str | None = None
    """Why it could not be loaded last."""
    memory_bytes: int | None = None
    """What it takes in memory; nothing before that was found out."""
    open: int = 0
    """Requests that use it."""
    waiting: int = 0
    """Requests that wait until it is loaded."""
    idle_s: float = 0.0
    """Seconds since a request came or left last."""


def load_state(status: Status) -> LoadState:
    match status.state:
        case "ready" | "closing":
            value: Literal["unloaded", "loading", "loaded", "failed"] = "loaded"
        case "sizing" | "queued" | "loading":
            value = "loading"
        case "failed":
            value = "failed"
        case _:
            value = "unloaded"
    return LoadState(
        value=value,
        state=status.state,
        phase=status.phase,
        failure=status.failure if value in ("failed", "unloaded") else None,
        memory_bytes=status.need,
        open=status.open,
        waiting=status.waiting,
        idle_s=round(status.idle_s, 3),
    )


def cards(status: Status, created: int, late: Mapping[str, str]) -> list[dict[str, Any]]:
    """The entries of ``GET /v1/models`` of a model and of its adapters, those too that came
    ``late``, by their names and paths."""
    own = card(status, created)
    parent = status.entry.name
    shown = {name: value for name, value in own.items() if name != "aliases"}
    adapters = {**status.entry.adapters, **late}.items()
    return [own, *({**shown, "id": name, "root": at, "parent": parent} for name, at in adapters)]


def card(status: Status, created: int) -> dict[str, Any]:
    """The first of these: that of a server of one model where it is loaded, and what is
    known without that otherwise."""
    name = status.entry.name
    shown: dict[str, Any] = {"id": name, "object": "model", "created": created}
    shown["owned_by"] = "penstock"
    if status.model is not None:
        shown |= msgspec.to_builtins(status.model.handlers.card)
    shown["status"] = msgspec.to_builtins(load_state(status))
    if status.entry.aliases:
        shown["aliases"] = list(status.entry.aliases)
    return shown


def local(status: Status, since: float) -> LocalModel:
    """An entry of ``GET /api/tags``; ``since`` is a Unix time."""
    if status.model is not None:
        return status.model.handlers.ollama.local
    name = status.entry.name
    return LocalModel(
        name=name,
        model=name,
        modified_at=_time(since),
        digest=hashlib.sha256(msgspec.json.encode(status.entry.config)).hexdigest(),
        details=_NO_DETAILS,
    )


def running(status: Status, now: float) -> LoadedModel | None:
    """An entry of ``GET /api/ps``, of a model that is loaded; ``now`` is a Unix time."""
    if status.model is None:
        return None
    keep = status.keep_s
    expires = _NEVER if keep is None else _time(now + max(0.0, keep - status.idle_s))
    return msgspec.structs.replace(
        status.model.handlers.ollama.loaded, size=status.need or 0, expires_at=expires
    )


def indexed(status: Status) -> RepositoryModel:
    """An entry of the answer of ``POST /v2/repository/index``, in Triton's states."""
    entry, state = status.entry, load_state(status)
    reason = state.failure or ""
    match state.value:
        case "loaded":
            shown: Literal["READY", "UNAVAILABLE", "LOADING", "UNLOADING"] = "READY"
        case "loading":
            shown, reason = "LOADING", state.phase or state.state
        case _:
            shown = "UNLOADING" if status.state == "unloading" else "UNAVAILABLE"
            reason = reason or "unloaded; it is loaded by the next request"
    return RepositoryModel(
        name=entry.model, version=entry.version or VERSION, state=shown, reason=reason
    )


def _time(unix: float) -> str:
    return datetime.datetime.fromtimestamp(unix, datetime.UTC).isoformat().replace("+00:00", "Z")
