"""Prefixes on disk, for the administrator: pinned, listed, renamed and removed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from penstock.engine.block_checksum import block_checksum
from penstock.engine.prompt_keys import prompt_keys
from penstock.errors import RequestError, StoreError
from penstock.interface.messages import EngineRequest
from penstock.kv_disk_config import BlockPlace
from penstock.kvstore.pinned_prefix import check_label
from penstock.kvstore.pinning import pin_computed
from penstock.kvstore.prefixes import Prefix, found, prefixes, remove, rename
from penstock.sampling.params import SamplingParams
from penstock.server.bodies import Bodies
from penstock.server.body_decoder import BodyDecoder
from penstock.server.errors import ApiError
from penstock.server.open_requests import OpenRequest
from penstock.server.openai.key_query import PromptReaders, Prompts
from penstock.server.openai.protocol import ChatRequest
from penstock.server.openapi import Endpoint
from penstock.server.options import ServerOptions
from penstock.server.serving import Serving
from penstock.server.small_body import small_body
from penstock.server.sse import unless_ended
from penstock.server.supervisor import Supervisor

PIN = "/admin/cache/pin"
PREFIXES = "/admin/cache/prefixes"
REMOVE = "/admin/cache/remove"
RENAME = "/admin/cache/rename"
_MAX_BODY_BYTES = 65_536

_log = logging.getLogger("penstock.admin")

T = TypeVar("T")


class PrefixList(msgspec.Struct, frozen=True):
    """The prefixes that are on disk, those used last first."""

    data: list[Prefix]


class RemoveBody(msgspec.Struct, forbid_unknown_fields=True):
    """The first digits of the prefixes' ids, or their labels, with KIND/ before them where several
    kinds of blocks have the prefix."""

    prefixes: list[str]


class RenameBody(msgspec.Struct, forbid_unknown_fields=True):
    """The first digits of the prefix's id, or its label, with KIND/ before it as for removal; and
    its label from now on: empty for none."""

    prefix: str
    label: str


class PinnedPrefixes:
    """The handlers. They work on the directory of ``--kv-disk`` itself; the engine sees within a
    second what became of it. An engine without one has none, and these are refused."""

    def __init__(
        self,
        engine: Supervisor,
        serving: Serving,
        bodies: Bodies,
        adapter: Callable[[str], str],
        readers: PromptReaders,
        options: ServerOptions,
    ) -> None:
        """``adapter`` returns the digest of the adapter that a model names."""
        self._engine = engine
        self._serving = serving
        self._bodies = bodies
        self._adapter = adapter
        self._readers = readers
        self._options = options
        self._removals = BodyDecoder(RemoveBody)
        self._renames = BodyDecoder(RenameBody)

    def endpoints(self) -> list[Endpoint]:
        return [
            Endpoint(
                "POST",
                PIN,
                self.pin,
                "Compute a request's prompt, and keep it on disk for good.",
                Prefix,
                ChatRequest,
                query={"path": {"enum": list(self._readers)}, "label": {"type": "string"}},
                access="admin",
            ),
            Endpoint(
                "GET",
                PREFIXES,
                self.list,
                "The prefixes that are kept on disk.",
                PrefixList,
                access="admin",
            ),
            Endpoint(
                "POST",
                REMOVE,
                self.remove,
                "Remove prefixes from disk, pinned or not.",
                PrefixList,
                RemoveBody,
                access="admin",
            ),
            Endpoint(
                "POST",
                RENAME,
                self.rename,
                "Give a pinned prefix another label.",
                Prefix,
                RenameBody,
                access="admin",
            ),
        ]

    async def pin(self, request: Request) -> Response:
        """The body is a request to ``path``, whose prompt is computed and pinned."""
        place = self._place()
        label = request.query_params.get("label", "")
        reader = self._readers.get(request.query_params.get("path", ""))
        if reader is None:
            why = f"path must be one of {', '.join(self._readers)}"
            raise ApiError(400, why, param="path")
        try:
            check_label(label)
        except StoreError as error:
            raise ApiError(400, str(error), param="label") from None
        caller = OpenRequest.of(request.scope).caller
        serving = replace(self._serving, caller=caller)
        reading = reader.read(request, self._bodies, serving)
        prompts = await unless_ended(request, request.receive, reading)
        prefix = await unless_ended(request, request.receive, self._pinned(place, prompts, label))
        _log.warning("pinned a prefix of %d tokens, %s", prefix.tokens, prefix.id)
        return _json(prefix)

    async def list(self, request: Request) -> Response:
        """Those of all models that share the directory."""
        return _json(PrefixList(await _on_disk(lambda: prefixes(Path(self._place().folder)))))

    async def remove(self, request: Request) -> Response:
        """Returns what was removed. What of it is in the engine's memory stays until it is
        reused."""
        body = await small_body(
            request, self._removals, _MAX_BODY_BYTES, self._options.body_timeout_s
        )
        root = Path(self._place().folder)

        def removed() -> PrefixList:
            gone = found(root, body.prefixes)
            for each in gone:
                remove(root, each)
            return PrefixList(gone)

        gone = await _on_disk(removed)
        _log.warning("removed %d prefixes from disk", len(gone.data))
        return _json(gone)

    async def rename(self, request: Request) -> Response:
        """Returns what the prefix is then."""
        body = await small_body(
            request, self._renames, _MAX_BODY_BYTES, self._options.body_timeout_s
        )
        root = Path(self._place().folder)

        def renamed() -> Prefix:
            (prefix,) = found(root, [body.prefix])
            return rename(root, prefix, body.label)

        prefix = await _on_disk(renamed)
        _log.warning("gave a pinned prefix another label, %s", prefix.id)
        return _json(prefix)

    async def _pinned(self, place: BlockPlace, prompts: Prompts, label: str) -> Prefix:
        """Compute the longest prompt, and pin it."""
        longest, adapter = max(prompts.token_ids, key=len), self._adapter(prompts.model)
        salt = prompts.salt or ""
        request = EngineRequest(
            request_id=f"pin-{uuid.uuid4().hex}",
            prompt_token_ids=longest,
            params=SamplingParams(temperature=0.0, max_tokens=1),
            cache_salt=salt,
            adapter=adapter,
        )
        async with contextlib.aclosing(self._engine.llm.outputs(request)) as outputs:
            async for output in outputs:
                if output.error is not None:
                    raise RequestError(output.error)
        keys = prompt_keys(longest, salt, adapter)
        return await _on_disk(lambda: pin_computed(place, keys, label, block_checksum))

    def _place(self) -> BlockPlace:
        place = self._engine.model.block_place
        if place is None:
            raise ApiError(
                409,
                "the engine keeps nothing on disk: start the server with --kv-disk DIR:SIZE, and "
                "see in its log whether that can be used",
                code="no_kv_disk",
            )
        return place


async def _on_disk(work: Callable[[], T]) -> T:
    """Do something with files, in a thread; what is refused is the client's error."""
    try:
        return await asyncio.to_thread(work)
    except StoreError as error:
        raise ApiError(400, str(error), code="not_on_disk") from None
    except OSError as error:
        raise ApiError(
            500, f"{error.filename or 'a file'}: {error.strerror or error}", type="server_error"
        ) from None


def _json(value: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
