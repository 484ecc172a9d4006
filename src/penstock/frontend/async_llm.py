"""``AsyncLLM``: many concurrent callers of one engine that runs in its own process."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import uuid
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

import msgspec

from penstock.config import EngineConfig
from penstock.engine.ipc.process import START_TIMEOUT_S, EngineProcess
from penstock.engine.ipc.spawn import DEFAULT_CORE, EngineChild
from penstock.engine.ipc.wire import ModelFacts, Ready, Refused
from penstock.errors import EngineDeadError, PenstockError, RequestError
from penstock.frontend.input_processor import InputProcessor
from penstock.frontend.output_processor import OutputProcessor
from penstock.frontend.outputs import RequestOutput
from penstock.frontend.pacing import Pacer
from penstock.frontend.room import Room
from penstock.frontend.stream import OutputStream
from penstock.interface.messages import (
    Abort,
    EngineRequest,
    EngineStats,
    RequestOptions,
    SequenceUpdate,
    first_bad_token,
)
from penstock.pooling.params import PoolingParams
from penstock.processes.frames import WireError
from penstock.sampling.params import SamplingParams
from penstock.scheduler.limits import check_room
from penstock.tokenizer import Tokenizer

_log = logging.getLogger(__name__)

DEFAULT_OPTIONS = RequestOptions()
_INT64 = range(-(2**63), 2**63)


class AsyncLLM:
    """A model behind an event loop. Create with :meth:`start`; all methods belong to that loop.

    Any number of :meth:`generate` calls may run at once; the engine batches them. Outputs are
    cumulative: a consumer that is slower than the engine, or than :attr:`pacer` lets it be, misses
    intermediate ones, never text.
    """

    def __init__(
        self, max_sequences: int | None = None, inputs: InputProcessor | None = None
    ) -> None:
        self.room = Room(max_sequences)
        """Limits the number of open sequences. A request counts ``n`` for each of its prompts."""
        self.pacer = Pacer()
        """Decides when tokens that come in quick succession are delivered together. The first and
        the last token of a request are delivered at once."""
        self._engine: EngineProcess | None = None
        self._ready: Ready | None = None
        self.inputs = inputs or InputProcessor()
        """Processes the texts of requests before these are sent to the engine."""
        self._owns_inputs = inputs is None
        self._processor: OutputProcessor | None = None
        self._streams: dict[str, OutputStream] = {}
        self._public_ids: dict[str, str] = {}
        """The public id of each request by its internal id, which is never used twice: updates that
        still arrive for a request that was stopped must not reach a later one of the same public
        id."""
        self._ids = itertools.count()
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

        ``core`` names another loader of the engine's core (see penstock.engine.ipc.child). Raises
        ConfigError, ModelError, WeightError or TokenizerError with the cause and the fix, and
        EngineDeadError if the process died or was not ready within ``timeout`` seconds.
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
    ) -> AsyncLLM:
        """Like :meth:`start`, with a process that was spawned before.

        More than ``max_sequences`` open sequences are refused. ``inputs`` is the model's, where
        there is one that outlives this engine; it is not closed here.
        """
        llm = cls(max_sequences, inputs)
        llm._engine = await EngineProcess.connect(child, _Listener(llm))
        try:
            llm._ready = await llm._engine.ready(timeout)
            llm.inputs.load(llm._ready.model.tokenizer_path)
            llm._processor = OutputProcessor(await llm.inputs.loaded())
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
        """Wait until the engine is gone and every open request has been told."""
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
            self.model.max_model_len,
            add_special_tokens=add_special_tokens,
            parse_special=parse_special,
            tenant=tenant,
        )
        return token_ids

    async def encode_all(
        self,
        texts: Sequence[str],
        params: Sequence[str],
        *,
        add_special_tokens: bool = True,
        tenant: str = "",
    ) -> list[list[int]]:
        """Like :meth:`encode`, for several texts; ``params`` names the fields of the request that
        hold them."""
        return await self.inputs.encode(
            texts,
            self.model.max_model_len,
            add_special_tokens=add_special_tokens,
            params=params,
            tenant=tenant,
        )

    async def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        template_options: Mapping[str, Any] | None = None,
        *,
        add_generation_prompt: bool = True,
        add_special_tokens: bool = False,
        tenant: str = "",
    ) -> list[int]:
        """The token ids of a chat in the model's template, by a worker process.

        Names of special tokens in messages are text. Raises RequestError.
        """
        return await self.inputs.encode_chat(
            messages,
            tools,
            template_options or {},
            self.model.max_model_len,
            add_generation_prompt=add_generation_prompt,
            add_special_tokens=add_special_tokens,
            tenant=tenant,
        )

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

        The last output has ``finished`` set. Leaving the iteration early, or cancelling the task
        that iterates, stops the request in the engine. ``prompt_text`` is what the outputs report
        as the prompt of token ids. Raises RequestError if the request cannot be served,
        OverloadedError if too many are open, and EngineDeadError if the engine dies.
        """
        request = EngineRequest(
            request_id=request_id or f"async-{uuid.uuid4().hex}",
            prompt_token_ids=[],
            params=params or SamplingParams(),
            priority=options.priority,
            cache_salt=options.cache_salt,
            tenant=options.tenant,
        )
        return self._outputs(request, prompt, prompt_text)

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
        request = EngineRequest(
            request_id=request_id or f"async-{uuid.uuid4().hex}",
            prompt_token_ids=[],
            pooling=pooling or PoolingParams(),
            priority=options.priority,
            cache_salt=options.cache_salt,
            tenant=options.tenant,
        )
        return self._outputs(request, prompt, None)

    async def _outputs(
        self, request: EngineRequest, prompt: str | Sequence[int], text: str | None
    ) -> AsyncGenerator[RequestOutput, None]:
        """Send the request with this prompt, of which ``text`` is the text where it is tokens."""
        if isinstance(prompt, str):
            text, prompt = prompt, await self.encode(prompt, tenant=request.tenant.name)
        request = msgspec.structs.replace(request, prompt_token_ids=list(prompt))
        self.check(request)
        if request.params.grammar is not None:
            await self.inputs.grammars.check(request.params.grammar, "grammar", request.tenant.name)
        stream = self._open(request, text)
        try:
            while True:
                output = await stream.next()
                yield output
                if output.finished:
                    return
        finally:
            self._leave(stream)

    def check(self, request: EngineRequest) -> None:
        """Raise RequestError for what the engine would refuse, before it travels there."""
        params, vocab = request.params, self.model.vocab_size
        if request.pooling is None:
            params.validate(vocab)
        else:
            request.pooling.validate()
        for name, value in (
            ("dimensions", (request.pooling and request.pooling.dimensions) or 0),
            ("priority", request.priority),
        ):
            if value not in _INT64:
                raise RequestError(f"{name} must fit in 64 bits, not {value}", name)
        tokens, longest = request.prompt_token_ids, self.model.max_model_len
        if not tokens:
            raise RequestError("the prompt is empty; give it at least one token", "prompt")
        if request.pooling is not None and len(tokens) > longest:
            raise RequestError(
                f"the prompt has {len(tokens)} tokens, and the context (max_model_len) holds "
                f"{longest}; shorten the prompt",
                "prompt",
            )
        if request.pooling is None and len(tokens) >= longest:
            raise RequestError(
                f"the prompt has {len(tokens)} tokens, and prompt and output together may have "
                f"{longest} (max_model_len): it must be at least {len(tokens) - longest + 1} "
                "tokens shorter to leave room for one token of output",
                "prompt",
            )
        if request.pooling is None:
            check_room(len(tokens), params, longest)
        bad = first_bad_token(tokens, vocab)
        if bad is not None:
            raise RequestError(
                f"the prompt holds token id {tokens[bad]!r}; this model's are integers from 0 to "
                f"{vocab - 1}",
                "prompt",
            )

    def abort(self, request_id: str) -> None:
        """Stop a request: its iteration ends with what it has and finish reason ``abort``.

        Unknown ids are ignored: the request may have just ended.
        """
        stream = self._streams.get(request_id)
        if stream is not None:
            for output in self._drop(stream):

                def last(output: RequestOutput = output) -> RequestOutput:
                    return output

                stream.put(last)
            stream.wake()

    async def stats(self) -> EngineStats:
        """Return the engine's statistics. Raises EngineDeadError."""
        return await self._live_engine().stats()

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
        found = [i for i in self._streams if i == prefix or i.startswith(f"{prefix}-")]
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

    def _open(self, request: EngineRequest, text: str | None) -> OutputStream:
        assert self._processor is not None, "use AsyncLLM.start()"
        public_id = request.request_id
        if public_id in self._streams:
            raise RequestError(f"request id {public_id!r} is in use", "request_id")
        n = request.params.n
        self.room.check(request.tenant, n)
        stream = OutputStream(public_id, f"{next(self._ids)}", n, request.tenant)
        self._processor.add_request(
            stream.wire_id, text, request.prompt_token_ids, request.params, public_id
        )
        self._streams[public_id] = stream
        self.room.enter(request.tenant, n)
        self._public_ids[stream.wire_id] = public_id
        try:
            self._live_engine().add_request(
                msgspec.structs.replace(request, request_id=stream.wire_id)
            )
        except WireError as error:
            self._forget(stream)
            raise RequestError(str(error), "prompt") from None
        except EngineDeadError:
            self._forget(stream)
            raise
        return stream

    def _leave(self, stream: OutputStream) -> None:
        """The consumer of ``stream`` is done with it, at its end or before."""
        if self._streams.get(stream.request_id) is stream:
            self._drop(stream)

    def _drop(self, stream: OutputStream) -> list[RequestOutput]:
        """Stop a request, here at once and in the engine as soon as it listens."""
        with contextlib.suppress(EngineDeadError):
            self._live_engine().abort(Abort([stream.wire_id]))
        return self._forget(stream)

    def _remove(self, stream: OutputStream) -> None:
        del self._streams[stream.request_id], self._public_ids[stream.wire_id]
        self.room.leave(stream.tenant, stream.num_sequences)

    def _forget(self, stream: OutputStream) -> list[RequestOutput]:
        self._remove(stream)
        assert self._processor is not None
        return self._processor.abort([stream.wire_id])

    # What the engine says; called by _Listener.

    def _updated(self, updates: list[SequenceUpdate]) -> None:
        assert self._processor is not None
        requests, aborts = self._processor.take(updates)
        for abort in aborts:
            self._live_engine().abort(abort)
        for request in requests:
            stream = self._streams[request.request_id]
            at_once = request.finished or not stream.begun
            stream.put(request.output)
            if at_once:
                stream.wake()
            else:
                self.pacer.grown(stream)
            if request.finished:
                self._remove(stream)
        self.pacer.flush(self.room.taken)

    def _refused(self, refused: Refused) -> None:
        stream = self._streams.get(self._public_ids.get(refused.request_id, ""))
        if stream is not None:
            self._forget(stream)
            stream.fail(RequestError(refused.message, refused.param))

    def _died(self, error: PenstockError) -> None:
        self._death = error
        if self._ready is not None and not self._closing:  # a failed start raises instead
            _log.error("%s", error)
        for stream in list(self._streams.values()):
            stream.freeze()
            self._forget(stream)
            stream.fail(EngineDeadError(str(error)))
        self._dead.set()


class _Listener:
    """Hands what the engine says to an AsyncLLM without making that part of its public face."""

    def __init__(self, llm: AsyncLLM) -> None:
        self._llm = llm

    def located(self, tokenizer_path: str) -> None:
        self._llm.inputs.load(tokenizer_path)

    def updated(self, updates: list[SequenceUpdate]) -> None:
        self._llm._updated(updates)

    def refused(self, refused: Refused) -> None:
        self._llm._refused(refused)

    def died(self, error: PenstockError) -> None:
        self._llm._died(error)
