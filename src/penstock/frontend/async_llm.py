"""``AsyncLLM``: many concurrent callers of one engine that runs in its own process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import AsyncGenerator, Sequence

import msgspec

from penstock.config import EngineConfig
from penstock.engine.ipc.process import START_TIMEOUT_S, EngineProcess
from penstock.engine.ipc.spawn import DEFAULT_CORE, EngineChild
from penstock.engine.ipc.wire import CacheReply, Loading, ModelFacts, Ready, Refused
from penstock.errors import EngineDeadError, PenstockError, RequestError
from penstock.frontend.input_processor import InputProcessor
from penstock.frontend.open_sequences import OpenSequences, Place
from penstock.frontend.open_streams import OpenStreams
from penstock.frontend.output_processor import OutputProcessor
from penstock.frontend.outputs import RequestOutput
from penstock.frontend.pacing import Pacer
from penstock.frontend.stream import OutputStream
from penstock.interface.loading import ProgressCallback, no_progress
from penstock.interface.messages import (
    Abort,
    EngineRequest,
    EngineStats,
    RequestOptions,
    SequenceUpdate,
)
from penstock.interface.request_checks import check_request, truncated
from penstock.pooling.params import PoolingParams
from penstock.processes.frames import WireError
from penstock.sampling.params import SamplingParams
from penstock.tokenizer import Tokenizer

_log = logging.getLogger(__name__)

DEFAULT_OPTIONS = RequestOptions()


class AsyncLLM:
    """A model behind an event loop. Create with :meth:`start`; all methods belong to that loop.

    Any number of :meth:`generate` calls may run at once; the engine batches them. Outputs are
    cumulative: a consumer that is slower than the engine, or than :attr:`pacer` lets it be, misses
    intermediate ones, never text.
    """

    def __init__(
        self,
        max_sequences: int | None = None,
        inputs: InputProcessor | None = None,
        sequences: OpenSequences | None = None,
    ) -> None:
        self.open_sequences = sequences or OpenSequences(max_sequences)
        """Limits the number of open sequences. A request counts ``n`` for each of its prompts."""
        self.pacer = Pacer()
        """Decides when tokens that come in quick succession are delivered together. The first and
        the last token of a request are delivered at once."""
        self._engine: EngineProcess | None = None
        self._ready: Ready | None = None
        self.inputs = inputs or InputProcessor()
        """Processes the texts of requests before these are sent to the engine."""
        self._owns_inputs = inputs is None
        self._streams: OpenStreams | None = None
        self._death: PenstockError | None = None
        self._dead = asyncio.Event()
        self._closing = False

    @classmethod
    async def start(
        cls,
        config: EngineConfig,
        *,
        core: str = DEFAULT_CORE,
        timeout: float = START_TIMEOUT_S,
    ) -> AsyncLLM:
        """Start an engine process and wait until it has generated its first token.

        ``core`` names another loader of the engine's core (penstock.engine.ipc.core_loader).
        Raises ConfigError, ModelError, WeightError or TokenizerError with the cause and the fix,
        and EngineDeadError if the process died or was not ready within ``timeout`` seconds.
        """
        return await cls.attach(EngineChild.spawn(config, core), timeout=timeout)

    @classmethod
    async def attach(
        cls,
        child: EngineChild,
        *,
        timeout: float = START_TIMEOUT_S,
        max_sequences: int | None = None,
        inputs: InputProcessor | None = None,
        sequences: OpenSequences | None = None,
        progress: ProgressCallback = no_progress,
    ) -> AsyncLLM:
        """Start as :meth:`start` does, with a process that was spawned before.

        More than ``max_sequences`` open sequences are refused, or more than ``sequences`` takes,
        which outlives this engine. ``inputs`` is the model's, where there is one that does so; it
        is not closed here. ``progress`` is told how loading goes on.
        """
        llm = cls(max_sequences, inputs, sequences)
        llm._engine = await EngineProcess.connect(child, _Listener(llm, progress))
        try:
            llm._ready = await llm._engine.ready(timeout)
            tokenizer = await llm.inputs.serve(llm.model)
            llm._streams = OpenStreams(OutputProcessor(tokenizer), llm.open_sequences, llm.pacer)
        except BaseException:
            await llm.aclose()
            raise
        return llm

    @property
    def ready(self) -> Ready:
        """The engine's report when it was ready: model, options, phases of the start."""
        assert self._ready is not None, "use AsyncLLM.start()"
        return self._ready

    @property
    def model(self) -> ModelFacts:
        return self.ready.model

    @property
    def tokenizer(self) -> Tokenizer:
        return self.inputs.tokenizer

    @property
    def death(self) -> PenstockError | None:
        """Why the engine is gone, or None while it lives."""
        return self._death

    async def wait_dead(self) -> None:
        """Wait until the engine is gone and every open request has failed."""
        await self._dead.wait()

    @property
    def process(self) -> EngineProcess:
        """The engine's process: its id and its signs of life."""
        return self._live_engine()

    async def encode(
        self,
        text: str,
        *,
        add_special_tokens: bool = True,
        parse_special: bool = True,
        tenant: str = "",
    ) -> list[int]:
        """Tokenizer.encode, by a worker process where the text is long.

        Tenants, known by their names, share the workers fairly. Raises RequestError also for a text
        that cannot fit in the context, or takes too much, and UnavailableError if workers are lost.
        """
        (token_ids,) = await self.inputs.encode(
            [text],
            add_special_tokens=add_special_tokens,
            parse_special=parse_special,
            tenant=tenant,
        )
        return token_ids

    def generate(
        self,
        prompt: str | Sequence[int],
        params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        options: RequestOptions = DEFAULT_OPTIONS,
        prompt_text: str | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Complete ``prompt``, text or token ids, yielding the request's output so far as it grows.

        Without ``params``, they are as the model's makers recommend. The last output has
        ``finished`` set. Leaving the iteration early, or cancelling the task
        that iterates, stops the request in the engine. ``prompt_text`` is what the outputs report
        as the prompt of token ids. Raises RequestError if the request cannot be served,
        OverloadedError if too many are open, and EngineDeadError if the engine dies.
        """
        return self._encoded_outputs(prompt, params, request_id, options, prompt_text)

    def embed(
        self,
        prompt: str | Sequence[int],
        pooling: PoolingParams | None = None,
        *,
        request_id: str | None = None,
        options: RequestOptions = DEFAULT_OPTIONS,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Embed ``prompt``, text or token ids; the one output that comes has ``embedding`` set, or
        ``error``.

        Otherwise as :meth:`generate`.
        """
        return self._encoded_outputs(prompt, pooling or PoolingParams(), request_id, options)

    async def outputs(
        self,
        request: EngineRequest,
        prompt_text: str | None = None,
        place: Place | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Serve a request whose prompt is tokenized, as :meth:`generate` and :meth:`embed` do.

        ``prompt_text`` is what the outputs report as the prompt; ``place`` is what the request has
        among the open sequences already.
        """
        model = self.model
        check_request(request, model.vocab_size, model.lengths)
        grammar = request.params.constraint
        if grammar is not None:
            param = "grammar" if request.params.grammar is grammar else "bad_words"
            await self.inputs.grammars.check(grammar, param, request.tenant.name)
        stream = self._open(request, prompt_text, place)
        try:
            while True:
                output = await stream.next()
                yield output
                if output.finished:
                    return
        finally:
            if self._open_streams().holds(stream):  # the consumer leaves before the end
                self._drop(stream)

    async def _encoded_outputs(
        self,
        prompt: str | Sequence[int],
        asked: SamplingParams | PoolingParams | None,
        request_id: str | None,
        options: RequestOptions,
        text: str | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Tokenize the prompt where it is text, and serve the request."""
        if isinstance(prompt, str):
            text, prompt = prompt, await self.encode(prompt, tenant=options.tenant.name)
        if asked is None:
            room = self.model.lengths.room(len(prompt))
            asked = self.model.sampling_defaults.params(room)
        prompt = list(prompt)
        if isinstance(asked, SamplingParams) and asked.truncate_prompt_tokens is not None:
            asked.validate()
            prompt = truncated(prompt, asked, self.model.lengths)
        name = request_id or f"async-{uuid.uuid4().hex}"
        request = EngineRequest.of(name, prompt, asked, options)
        async with contextlib.aclosing(self.outputs(request, text)) as outputs:
            async for output in outputs:
                yield output

    def abort(self, request_id: str) -> None:
        """Stop a request: its iteration ends with what it has and finish reason ``abort``.

        Unknown ids are ignored: the request may have just ended.
        """
        stream = self._open_streams().find(request_id)
        if stream is not None:
            for output in self._drop(stream):

                def last(output: RequestOutput = output) -> RequestOutput:
                    return output

                stream.put(last)
            stream.wake()

    async def stats(self) -> EngineStats:
        """Return the engine's statistics. Raises EngineDeadError."""
        return await self._live_engine().stats()

    async def cache_changes(self, epoch: str = "", position: int | None = None) -> CacheReply:
        """Return how the prefixes that can be found changed since a position of an epoch, both of
        an earlier reply; without, all there are. Raises EngineDeadError."""
        return await self._live_engine().cache_changes(epoch, position)

    async def load_adapter(self, path: str) -> str:
        """Load a LoRA adapter from a folder; return its digest, which requests name
        (``RequestOptions.adapter``). Raises ConfigError, WeightError or EngineDeadError."""
        return await self._live_engine().load_adapter(path)

    async def drop_adapter(self, digest: str) -> None:
        """Forget an adapter; requests that use it go on. Raises EngineDeadError."""
        await self._live_engine().drop_adapter(digest)

    async def reset_prefix_cache(self) -> None:
        """Forget every cached prefix. Raises EngineDeadError."""
        await self._live_engine().reset_prefix_cache()

    async def check_integrity(self) -> None:
        """Check the engine's bookkeeping. Raises PenstockError if it is inconsistent, or
        EngineDeadError."""
        await self._live_engine().check_integrity()

    def abort_matching(self, prefix: str) -> int:
        """Stop the requests whose id is ``prefix``, or begins with it and a hyphen; return how
        many."""
        found = self._open_streams().matching(prefix)
        for request_id in found:
            self.abort(request_id)
        return len(found)

    async def aclose(self) -> None:
        """End the engine process; open iterations raise EngineDeadError. Safe to repeat."""
        self._closing = True
        if self._engine is not None:
            await self._engine.aclose()
        if self._owns_inputs:
            await self.inputs.aclose()

    def _live_engine(self) -> EngineProcess:
        assert self._engine is not None, "use AsyncLLM.start()"
        return self._engine

    def _open_streams(self) -> OpenStreams:
        assert self._streams is not None, "use AsyncLLM.start()"
        return self._streams

    def _open(self, request: EngineRequest, text: str | None, place: Place | None) -> OutputStream:
        """Open a stream and send the request to the engine, under the stream's internal id."""
        streams = self._open_streams()
        stream = streams.open(request, text, place)
        try:
            self._live_engine().add_request(
                msgspec.structs.replace(request, request_id=stream.wire_id)
            )
        except WireError as error:
            streams.forget(stream)
            raise RequestError(str(error), "prompt") from None
        except EngineDeadError:
            streams.forget(stream)
            raise
        return stream

    def _drop(self, stream: OutputStream) -> list[RequestOutput]:
        """Stop a request, here at once and in the engine as soon as it listens."""
        with contextlib.suppress(EngineDeadError):
            self._live_engine().abort(Abort([stream.wire_id]))
        return self._open_streams().forget(stream)

    # What the engine says; called by _Listener.

    def _load_tokenizer(self, path: str) -> None:
        def loaded(task: asyncio.Task[Tokenizer]) -> None:
            error = None if task.cancelled() else task.exception()
            if isinstance(error, PenstockError) and self._ready is None and not self._closing:
                # Weights that nobody can ask with a text need not be read to the end.
                self._live_engine().kill(error)

        self.inputs.load(path).add_done_callback(loaded)

    def _updated(self, updates: list[SequenceUpdate]) -> None:
        for abort in self._open_streams().update(updates):
            self._live_engine().abort(abort)

    def _refused(self, refused: Refused) -> None:
        error = RequestError(refused.message, refused.param)
        self._open_streams().refuse(refused.request_id, error)

    def _died(self, error: PenstockError) -> None:
        self._death = error
        if self._ready is not None and not self._closing:  # a failed start raises instead
            _log.error("%s", error)
        if self._streams is not None:
            self._streams.fail(error)
        self._dead.set()


class _Listener:
    """Hands what the engine says to an AsyncLLM without making that part of its public face."""

    def __init__(self, llm: AsyncLLM, progress: ProgressCallback) -> None:
        self._llm = llm
        self._progress = progress

    def loading(self, now: Loading) -> None:
        self._progress(now.phase, now.done, now.num_bytes)

    def located(self, tokenizer_path: str) -> None:
        self._llm._load_tokenizer(tokenizer_path)

    def updated(self, updates: list[SequenceUpdate]) -> None:
        self._llm._updated(updates)

    def refused(self, refused: Refused) -> None:
        self._llm._refused(refused)

    def died(self, error: PenstockError) -> None:
        self._llm._died(error)
