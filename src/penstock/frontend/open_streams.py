"""The open requests of one engine, as a front end keeps them."""

from __future__ import annotations

import itertools

from penstock.errors import EngineDeadError, PenstockError, RequestError
from penstock.frontend.open_sequences import OpenSequences, Place
from penstock.frontend.output_processor import OutputProcessor
from penstock.frontend.outputs import RequestOutput
from penstock.frontend.pacing import Pacer
from penstock.frontend.stream import OutputStream
from penstock.interface.messages import Abort, EngineRequest, SequenceUpdate


class OpenStreams:
    """Every open request's stream, and what turns the engine's updates into its outputs.

    A request has its public id, by which callers know it, and an internal one, by which the engine
    does. That is never used twice: updates that still arrive for a request that was stopped must
    not reach a later one of the same public id. Belongs to one event loop.
    """

    def __init__(self, processor: OutputProcessor, sequences: OpenSequences, pacer: Pacer) -> None:
        self._processor = processor
        self._sequences = sequences
        self._pacer = pacer
        self._streams: dict[str, OutputStream] = {}
        self._public_ids: dict[str, str] = {}
        self._ids = itertools.count()

    def open(
        self, request: EngineRequest, text: str | None, place: Place | None = None
    ) -> OutputStream:
        """Enter a request, whose prompt's text is ``text`` where it is known.

        Raises RequestError if its id is in use, and OverloadedError if too many sequences are open
        and there is no ``place`` for its own.
        """
        public_id, n = request.request_id, request.params.n
        if public_id in self._streams:
            raise RequestError(f"request id {public_id!r} is in use", "request_id")
        if place is None or not place.take(n):
            self._sequences.check(request.tenant, n)
        stream = OutputStream(public_id, f"{next(self._ids)}", n, request.tenant)
        self._processor.add_request(
            stream.wire_id, text, request.prompt_token_ids, request.params, public_id
        )
        self._streams[public_id] = stream
        self._sequences.add(request.tenant, n)
        self._public_ids[stream.wire_id] = public_id
        return stream

    def find(self, request_id: str) -> OutputStream | None:
        """Return the open stream of this public id."""
        return self._streams.get(request_id)

    def matching(self, prefix: str) -> list[str]:
        """Return the public ids that are ``prefix``, or begin with it and a hyphen."""
        return [i for i in self._streams if i == prefix or i.startswith(f"{prefix}-")]

    def holds(self, stream: OutputStream) -> bool:
        return self._streams.get(stream.request_id) is stream

    def forget(self, stream: OutputStream) -> list[RequestOutput]:
        """Remove an open stream; returns its last output, which tells of an abort."""
        self._remove(stream)
        return self._processor.abort([stream.wire_id])

    def update(self, updates: list[SequenceUpdate]) -> list[Abort]:
        """Put a step's updates into the streams; return the aborts to send to the engine."""
        requests, aborts = self._processor.take(updates)
        for request in requests:
            stream = self._streams[request.request_id]
            at_once = request.finished or not stream.begun
            stream.put(request.output)
            if at_once:
                stream.wake()
            else:
                self._pacer.grown(stream)
            if request.finished:
                self._remove(stream)
        self._pacer.flush(self._sequences.count)
        return aborts

    def refuse(self, wire_id: str, error: RequestError) -> None:
        """Fail the request that the engine did not take; one that has ended is ignored."""
        stream = self._streams.get(self._public_ids.get(wire_id, ""))
        if stream is not None:
            self.forget(stream)
            stream.fail(error)

    def fail(self, error: PenstockError) -> None:
        """Fail every open request; what each has so far can still be read."""
        for stream in list(self._streams.values()):
            stream.freeze()
            self.forget(stream)
            stream.fail(EngineDeadError(str(error)))

    def _remove(self, stream: OutputStream) -> None:
        del self._streams[stream.request_id], self._public_ids[stream.wire_id]
        self._sequences.remove(stream.tenant, stream.num_sequences)
