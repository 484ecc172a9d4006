"""The typed messages between the engine's process and its front end, one in each frame."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Sequence

import msgspec

from penstock.config import EngineConfig
from penstock.engine.ipc.startup import Phase
from penstock.handover_config import Role
from penstock.interface.messages import Abort, EngineRequest, EngineStats, SequenceUpdate
from penstock.kv_disk_config import BlockPlace
from penstock.length_limits import LengthLimits
from penstock.pooling.labels import Labels
from penstock.processes.frames import PIECE_BYTES, FrameReader, WireError, encode
from penstock.processes.wake import Wake
from penstock.resolved_config import ResolvedConfig
from penstock.sampling.defaults import SamplingDefaults

MAX_FRAME_BYTES = 64 << 20
"""Maximum size of one frame: enough for ten million prompt tokens, or 20 logprobs for each of 200
thousand."""

BEAT_S = 1.0
"""Seconds between signs of life: short enough to find a stopped process within seconds, long enough
for waking up to cost nothing."""


class Start(msgspec.Struct, tag="start", frozen=True):
    """The first message to a new engine process: what to load."""

    config: EngineConfig
    spawned_at: float  # time.monotonic() just before the process was created
    role: Role | None = None  # whether prompts are computed apart, and by whom


class StatsQuery(msgspec.Struct, tag="stats_query", frozen=True):
    """Answered by one :class:`StatsReply` with the same ``query_id``."""

    query_id: int


class ResetCache(msgspec.Struct, tag="reset_cache", frozen=True):
    """Forget every cached prefix; answered by one :class:`Done` with the same ``query_id``."""

    query_id: int


class CheckIntegrity(msgspec.Struct, tag="check_integrity", frozen=True):
    """Compare the scheduler's and the cache's books; answered by one :class:`Done`."""

    query_id: int


class CacheQuery(msgspec.Struct, tag="cache_query", frozen=True):
    """How the prefixes that can be found changed; answered by one :class:`CacheReply`.

    ``position`` is that of an earlier reply of the same ``epoch``; None asks for all.
    """

    query_id: int
    epoch: str = ""
    position: int | None = None


class LoadAdapter(msgspec.Struct, tag="load_adapter", frozen=True):
    """Load an adapter from this folder; answered by one :class:`AdapterReply`."""

    query_id: int
    path: str


class DropAdapter(msgspec.Struct, tag="drop_adapter", frozen=True):
    """Forget an adapter; answered by one :class:`Done`."""

    query_id: int
    digest: str


class Shutdown(msgspec.Struct, tag="shutdown", frozen=True):
    """Close the engine and end the process; open requests are dropped."""


class Located(msgspec.Struct, tag="located", frozen=True):
    """The path of the tokenizer, sent early so that the front end loads it while weights load."""

    tokenizer_path: str


class Loading(msgspec.Struct, tag="loading", frozen=True):
    """How loading goes on: the arguments of a
    :data:`~penstock.interface.loading.ProgressCallback`."""

    phase: str
    done: float
    num_bytes: int


class ModelFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a front end must know about the model that is served."""

    served_model_name: str
    tokenizer_path: str
    lengths: LengthLimits
    vocab_size: int
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    sampling_defaults: SamplingDefaults = SamplingDefaults()
    is_demo: bool = False
    """Whether it is the demo model, which ships with Penstock."""
    architecture: str = ""
    parameters: int = 0
    """Number of weights. With the architecture it tells profiles of the model from others; 0 where
    nobody has counted."""
    max_loras: int = 0
    """How many adapters run at once; 0: none are served."""
    adapters: dict[str, str] = {}
    """The digests of the adapters that were loaded at the start, by their names."""
    labels: Labels | None = None
    """What the model tells texts by; None: it generates and embeds."""
    block_place: BlockPlace | None = None
    """Where blocks are kept on disk; None: nowhere."""


class Ready(msgspec.Struct, tag="ready", frozen=True, kw_only=True):
    """The engine has served a first request and takes others."""

    model: ModelFacts
    phases: list[Phase]
    notes: list[str] = []
    """Other lines worth logging: artifacts written, damaged or not kept."""
    config: ResolvedConfig | None = None


class Updates(msgspec.Struct, tag="updates", frozen=True):
    """Everything that one step, or one abort, produced."""

    updates: list[SequenceUpdate]


class Refused(msgspec.Struct, tag="refused", frozen=True):
    """The engine did not take this request: the text and field of its RequestError."""

    request_id: str
    message: str
    param: str | None = None


class StatsReply(msgspec.Struct, tag="stats_reply", frozen=True):
    query_id: int
    stats: EngineStats


class Done(msgspec.Struct, tag="done", frozen=True):
    """The command of this id was carried out, or ``error`` says why it was not."""

    query_id: int
    error: str | None = None


class AdapterReply(msgspec.Struct, tag="adapter_reply", frozen=True, kw_only=True):
    """The adapter was loaded, or ``kind`` names the class of the error in penstock.errors."""

    query_id: int
    digest: str = ""
    kind: str = ""
    message: str = ""


class CacheReply(msgspec.Struct, tag="cache_reply", frozen=True, kw_only=True):
    """As :class:`~penstock.cache.changes.CacheChanges`, with keys one behind the other."""

    query_id: int
    epoch: str
    """The name of this engine's life: positions of others mean nothing."""
    since: int | None
    until: int
    added: bytes
    removed: bytes


class Beat(msgspec.Struct, tag="beat", frozen=True):
    """A sign of life, sent every ``BEAT_S`` seconds from a thread of its own."""

    step_s: float  # for how long the engine has been in its present step; 0 between steps


class Logged(msgspec.Struct, tag="logged", frozen=True):
    """A line of the engine's log, for that of the front end."""

    level: int
    logger: str
    text: str


class Fatal(msgspec.Struct, tag="fatal", frozen=True):
    """The engine's process ends now. ``kind`` names the error's class in penstock.errors."""

    kind: str
    message: str


ToEngine = (
    Start
    | EngineRequest
    | Abort
    | StatsQuery
    | ResetCache
    | CheckIntegrity
    | CacheQuery
    | LoadAdapter
    | DropAdapter
    | Shutdown
)
FromEngine = (
    Located
    | Loading
    | Ready
    | Updates
    | Refused
    | StatsReply
    | CacheReply
    | AdapterReply
    | Done
    | Beat
    | Logged
    | Fatal
)


def encode_frame(message: ToEngine | FromEngine, limit: int = MAX_FRAME_BYTES) -> bytes:
    """One whole frame. Raises WireError if the message does not fit in ``limit`` bytes."""
    try:
        return encode(message, limit)
    except WireError as error:
        raise WireError(f"{error}; ask for fewer logprobs or a shorter prompt") from None


def encode_updates(
    updates: Sequence[SequenceUpdate], limit: int = MAX_FRAME_BYTES
) -> tuple[list[bytes], list[tuple[SequenceUpdate, WireError]]]:
    """One frame with all updates of a step, where they fit in one; otherwise one frame each.

    The second list holds updates that do not fit in a frame even alone, each with its error.
    """
    try:
        return [encode_frame(Updates(list(updates)), limit)], []
    except WireError as error:
        if len(updates) == 1:
            return [], [(updates[0], error)]
    middle = len(updates) // 2
    frames, failed = encode_updates(updates[:middle], limit)
    more_frames, more_failed = encode_updates(updates[middle:], limit)
    return frames + more_frames, failed + more_failed


class FrameSocket:
    """The engine's blocking end of the socket. Any thread may send; one receives."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._sending = threading.Lock()
        self._reader: FrameReader[ToEngine] = FrameReader(ToEngine, MAX_FRAME_BYTES)

    def send(self, frame: bytes) -> None:
        """Raises OSError if the front end is gone."""
        with self._sending:
            self._socket.sendall(frame)

    def stop_receiving(self) -> None:
        """Have :meth:`receive` return None, as at the end of the stream. From any thread."""
        self._socket.shutdown(socket.SHUT_RD)

    def receive(self, wait: bool, wake: Wake | None = None) -> list[ToEngine] | None:
        """Messages received so far; with ``wait``, block for at least some bytes, or until somebody
        has woken whoever waits here.

        Returns None at the end of the stream: the front end has closed or died.
        """
        if wait and wake is not None and wake.fd in _readable(self._socket.fileno(), wake.fd):
            wake.clear()
            wait = False
        flags = 0 if wait else socket.MSG_DONTWAIT
        messages: list[ToEngine] = []
        while True:
            try:
                data = self._socket.recv(PIECE_BYTES, flags)
            except (BlockingIOError, InterruptedError):
                return messages
            except ConnectionError:
                return None
            if not data:
                return None
            messages += self._reader.feed(data)
            # A whole buffer may mean that more waits; a short read emptied the socket.
            if len(data) < PIECE_BYTES:
                return messages


def _readable(*fds: int) -> set[int]:
    """Wait until one of these can be read, or has come to its end; returns which."""
    poll = select.poll()  # select() takes no descriptors above 1023
    for fd in fds:
        poll.register(fd, select.POLLIN)
    return {fd for fd, _ in poll.poll()}
