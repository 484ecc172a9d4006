"""``POST /completion``: answers whole, or as events."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

import msgspec
from msgspec import UNSET

from penstock.frontend.outputs import (
    CompletionOutput,
    Logprob,
    OutputDelta,
    PositionLogprobs,
    RequestOutput,
)
from penstock.sampling.params import SamplingParams
from penstock.server.errors import ApiError
from penstock.server.fanout import has_news, last, merged
from penstock.server.fill import Gap
from penstock.server.last_tokens import LAST_TOKENS, looking_back
from penstock.server.llama import errors
from penstock.server.llama.infill import infill_tokens
from penstock.server.llama.input import COMPLETION, NAMES, completion_of, constraint_of
from penstock.server.llama.protocol import (
    InfillRequest,
    LlamaAsked,
    LlamaPart,
    LlamaProbabilities,
    LlamaRequest,
    LlamaSettings,
    LlamaTimings,
    LlamaTop,
    StopType,
)
from penstock.server.meter import Meter
from penstock.server.openai.answer_structs import likeliest
from penstock.server.openai.prepare import PreparedChat, prepare_raw
from penstock.server.openai.renamed import by_names
from penstock.server.serving import Serving
from penstock.server.sse import event

_MS = 1000.0


class LlamaJob:
    """One validated request."""

    def __init__(self, request: LlamaAsked, prepared: PreparedChat) -> None:
        self._request = request
        self._prepared = prepared
        self._hidden = request.n_predict == 0
        """Whether the answer is not told: it is a token that nobody asked for."""
        self._id = f"llama-{uuid.uuid4().hex}"

    @classmethod
    async def prepare(
        cls, request: LlamaRequest | InfillRequest, serving: Serving, meter: Meter
    ) -> LlamaJob:
        """Validate a request. Raises ApiError or RequestError for what is refused before the engine
        runs."""
        if isinstance(request, InfillRequest):
            gap = Gap.of(serving.engine.tokenizer, "", "ask /completion")
            asked = completion_of(request, await infill_tokens(request, serving, gap))
            if not request.ignore_eos:
                asked = msgspec.structs.replace(asked, stop_token_ids=list(gap.ends))
        else:
            asked = completion_of(request, request.prompt)
        asked = looking_back(asked, serving.engine.model.sampling_defaults)
        with by_names(NAMES):
            constraint = constraint_of(request)
            prepared = await prepare_raw(asked, serving, meter, COMPLETION, asked=constraint)
        return cls(request, prepared)

    async def answer(self) -> bytes:
        """The whole answer as JSON."""
        (output,) = await last([self._prepared.generation(self._id)])
        whole = output.outputs[0].since(None)
        tokens = whole.token_ids if self._request.return_tokens else []
        return self._told(self._end(output, whole, tokens))

    async def events(self) -> AsyncGenerator[bytes, None]:
        """The answer as server-sent events; the last has no text of its own."""
        before: CompletionOutput | None = None
        output: RequestOutput | None = None
        async with aclosing(merged([self._prepared.generation(self._id)])) as outputs:
            async for _, output in outputs:
                (choice,) = output.outputs
                if self._hidden or not has_news(choice, before):
                    continue
                new, before = choice.since(before), choice
                if new.token_ids:
                    timed = self._request.timings_per_token
                    part = LlamaPart(
                        content=new.text,
                        tokens=new.token_ids,
                        stop=False,
                        tokens_predicted=choice.num_tokens,
                        tokens_evaluated=len(output.prompt_token_ids),
                        timings=self._timings(output, choice.num_tokens) if timed else UNSET,
                        completion_probabilities=self._probabilities(new),
                    )
                    yield event(msgspec.json.encode(part))
        assert output is not None
        yield event(self._told(self._end(output, OutputDelta("", [], None), [])))

    def error(self, failure: ApiError) -> bytes:
        """The event that says why a stream ends early."""
        return errors.event(failure)

    def _told(self, end: LlamaPart) -> bytes:
        """The end of an answer, with the fields that are wanted of it."""
        wanted = self._request.response_fields
        if not wanted:
            return msgspec.json.encode(end)
        fields = msgspec.to_builtins(end)
        found = ((path, _at(fields, path.split("/"))) for path in wanted)
        return msgspec.json.encode({path: value for path, value in found if value is not UNSET})

    def _end(self, output: RequestOutput, new: OutputDelta, tokens: list[int]) -> LlamaPart:
        (choice,) = output.outputs
        predicted = 0 if self._hidden else choice.num_tokens
        stopping = choice.stop_reason if isinstance(choice.stop_reason, str) else ""
        tokenizer = self._prepared.engine.tokenizer
        text = tokenizer.decode(output.prompt_token_ids, False)
        rest: dict[str, Any] = {}
        if not self._hidden:
            rest["completion_probabilities"] = self._probabilities(new)
        return LlamaPart(
            content="" if self._hidden else new.text,
            tokens=[] if self._hidden else tokens,
            stop=True,
            tokens_predicted=predicted,
            tokens_evaluated=len(output.prompt_token_ids),
            timings=self._timings(output, predicted),
            model=self._request.model,
            generation_settings=settings(self._prepared.params, self._request.n_predict),
            prompt=text,
            has_new_line=not self._hidden and "\n" in choice.text,
            truncated=False,
            stop_type="limit" if self._hidden else _stop_type(choice),
            stopping_word="" if self._hidden else stopping,
            tokens_cached=len(output.prompt_token_ids) + predicted,
            **rest,
        )

    def _probabilities(self, new: OutputDelta) -> list[LlamaProbabilities] | msgspec.UnsetType:
        if not self._request.n_probs or new.logprobs is None:
            return UNSET
        return [
            LlamaProbabilities(
                **self._fields(token, position[token]), top_logprobs=self._tops(position)
            )
            for token, position in zip(new.token_ids, new.logprobs, strict=True)
        ]

    def _tops(self, position: PositionLogprobs) -> list[LlamaTop]:
        found: Sequence[tuple[int, Logprob]] = likeliest(position, self._request.n_probs)
        return [LlamaTop(**self._fields(token, entry)) for token, entry in found]

    def _fields(self, token: int, entry: Logprob) -> dict[str, Any]:
        return {
            "id": token,
            "token": entry.decoded_token or "",
            "bytes": list(self._prepared.engine.tokenizer.pieces[token]),
            "logprob": entry.logprob,
        }

    def _timings(self, output: RequestOutput, predicted: int) -> LlamaTimings:
        times = output.metrics
        first = times.first_token_time or times.arrival_time
        prompt_ms = (first - times.arrival_time) * _MS
        predicted_ms = ((times.last_token_time or first) - first) * _MS
        computed = len(output.prompt_token_ids) - output.num_cached_tokens
        return LlamaTimings(
            cache_n=output.num_cached_tokens,
            prompt_n=computed,
            prompt_ms=prompt_ms,
            prompt_per_token_ms=prompt_ms / max(computed, 1),
            prompt_per_second=_rate(computed, prompt_ms),
            predicted_n=predicted,
            predicted_ms=predicted_ms,
            predicted_per_token_ms=predicted_ms / max(predicted, 1),
            predicted_per_second=_rate(predicted, predicted_ms),
        )


def settings(params: SamplingParams, predict: int) -> LlamaSettings:
    """What the dialect tells of sampling options. ``predict`` is the limit that was asked for."""
    return LlamaSettings(
        n_predict=predict,
        seed=-1 if params.seed is None else params.seed,
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        min_p=params.min_p,
        repeat_penalty=params.repetition_penalty,
        repeat_last_n=LAST_TOKENS if params.repeat_last_n is None else params.repeat_last_n,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        stop=list(params.stop),
        ignore_eos=params.ignore_eos,
        n_probs=params.logprobs or 0,
    )


def _at(value: Any, path: Sequence[str]) -> Any:
    """What is at a path of names within objects; UNSET where there is nothing."""
    for name in path:
        if not isinstance(value, dict) or name not in value:
            return UNSET
        value = value[name]
    return value


def _rate(count: int, ms: float) -> float:
    """``count`` a second; 0 for no time at all."""
    return count / ms * _MS if ms > 0 else 0.0


def _stop_type(choice: CompletionOutput) -> StopType:
    if choice.finish_reason == "length":
        return "limit"
    return "word" if isinstance(choice.stop_reason, str) else "eos"
