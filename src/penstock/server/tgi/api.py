"""``POST /generate``, ``POST /generate_stream`` and ``POST /``: answers token by token."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import msgspec
from msgspec import UNSET

from penstock.frontend.outputs import CompletionOutput, PositionLogprobs, RequestOutput
from penstock.server.errors import ApiError
from penstock.server.fanout import has_news, last, merged
from penstock.server.meter import Meter
from penstock.server.openai.prepare import PreparedChat, prepare_raw
from penstock.server.openai.renamed import by_names
from penstock.server.serving import Serving
from penstock.server.sse import event
from penstock.server.tgi import errors
from penstock.server.tgi.input import COMPLETION, GRAMMAR, NAMES, completion_of
from penstock.server.tgi.protocol import (
    AnyTgiRequest,
    BestOfSequence,
    FinishReason,
    GeneratedToken,
    GenerationDetails,
    PrefillToken,
    StreamDetails,
    TgiGenerated,
    TgiRequest,
    TgiStreamed,
)
from penstock.server.tgi.token_texts import TokenTexts, ToldToken


class GenerationJob:
    """One validated request."""

    def __init__(self, request: AnyTgiRequest, prepared: PreparedChat) -> None:
        self._request = request
        self._given = request.parameters
        self._prepared = prepared
        self._seed = None if prepared.params.greedy else prepared.params.seed
        self._id = f"tgi-{uuid.uuid4().hex}"

    @classmethod
    async def prepare(cls, request: AnyTgiRequest, serving: Serving, meter: Meter) -> GenerationJob:
        """Validate a request. Raises ApiError or RequestError for what is refused before the engine
        runs."""
        asked = completion_of(request)
        with by_names(NAMES):
            prepared = await prepare_raw(asked, serving, meter, COMPLETION)
        if prepared.bound_by:
            prepared = dataclasses.replace(prepared, bound_by=GRAMMAR)
        return cls(request, prepared)

    async def answer(self) -> bytes:
        """The whole answer as JSON; at ``/`` as a list of one."""
        (output,) = await last([self._prepared.generation(self._id)])
        best, *others = _ranked(output.outputs)
        answer = TgiGenerated(
            generated_text=self._text(best),
            details=self._details(output, best, others) if self._given.details else UNSET,
        )
        return msgspec.json.encode([answer] if isinstance(self._request, TgiRequest) else answer)

    async def events(self) -> AsyncGenerator[bytes, None]:
        """The answer as server-sent events, one for each token."""
        before: CompletionOutput | None = None
        index = 0
        async with aclosing(merged([self._prepared.generation(self._id)])) as outputs:
            async for _, output in outputs:
                (choice,) = output.outputs
                if before is None:
                    texts = self._texts(output)
                elif not has_news(choice, before):
                    continue
                before = choice
                told = list(texts.take(choice))
                if choice.finish_reason is not None and not told:
                    told = [(self._nothing(), [])]
                for token in told:
                    index += 1
                    end = choice if token is told[-1] and choice.finish_reason else None
                    yield event(msgspec.json.encode(self._streamed(index, token, output, end)))

    def error(self, failure: ApiError) -> bytes:
        """The event that says why a stream ends early."""
        return errors.event(failure)

    def _streamed(
        self, index: int, told: ToldToken, output: RequestOutput, end: CompletionOutput | None
    ) -> TgiStreamed:
        token, tops = told
        details: StreamDetails | None = None
        if end is not None and self._given.details:
            details = StreamDetails(
                finish_reason=_reason(end),
                generated_tokens=end.num_tokens,
                seed=self._seed,
                input_length=len(output.prompt_token_ids),
            )
        return TgiStreamed(
            index=index,
            token=token,
            top_tokens=tops or UNSET,
            generated_text=None if end is None else self._text(end),
            details=details,
        )

    def _details(
        self, output: RequestOutput, best: CompletionOutput, others: Sequence[CompletionOutput]
    ) -> GenerationDetails:
        prefill = self._prefill(output)
        tokens, tops = self._tokens(output, best)
        sequences = []
        for other in others:
            its_tokens, its_tops = self._tokens(output, other)
            sequences.append(
                BestOfSequence(
                    generated_text=self._text(other),
                    finish_reason=_reason(other),
                    generated_tokens=other.num_tokens,
                    seed=self._seed,
                    prefill=prefill,
                    tokens=its_tokens,
                    top_tokens=its_tops,
                )
            )
        return GenerationDetails(
            finish_reason=_reason(best),
            generated_tokens=best.num_tokens,
            seed=self._seed,
            prefill=prefill,
            tokens=tokens,
            top_tokens=tops,
            best_of_sequences=sequences or UNSET,
        )

    def _tokens(
        self, output: RequestOutput, choice: CompletionOutput
    ) -> tuple[list[GeneratedToken], list[list[GeneratedToken]] | msgspec.UnsetType]:
        told = list(self._texts(output).take(choice))
        tops = [tops for _, tops in told] if self._given.top_n_tokens else UNSET
        return [token for token, _ in told], tops

    def _prefill(self, output: RequestOutput) -> list[PrefillToken]:
        if output.prompt_logprobs is None:
            return []
        text = self._prepared.engine.tokenizer.token_text
        return [
            PrefillToken(id=token, text=text(token), logprob=_logprob(token, position))
            for token, position in zip(output.prompt_token_ids, output.prompt_logprobs, strict=True)
        ]

    def _texts(self, output: RequestOutput) -> TokenTexts:
        tokenizer, top = self._prepared.engine.tokenizer, self._given.top_n_tokens or 0
        return TokenTexts(tokenizer, output.prompt_token_ids, top)

    def _text(self, choice: CompletionOutput) -> str:
        return (self._request.inputs if self._given.return_full_text else "") + choice.text

    def _nothing(self) -> GeneratedToken:
        """What stands for the last token where the end has none of its own."""
        ends = self._prepared.engine.model.eos_token_ids
        return GeneratedToken(id=ends[0] if ends else 0, text="", logprob=0.0, special=True)


def _ranked(choices: Sequence[CompletionOutput]) -> list[CompletionOutput]:
    """Rank by the mean log-probability of their tokens, best first; ties keep their order."""
    if len(choices) == 1:
        return list(choices)
    return sorted(
        choices,
        key=lambda choice: (choice.cumulative_logprob or 0.0) / max(1, choice.num_tokens),
        reverse=True,
    )


def _logprob(token: int, position: PositionLogprobs | None) -> float | None:
    return None if position is None else position[token].logprob


def _reason(choice: CompletionOutput) -> FinishReason:
    if choice.finish_reason == "length":
        return "length"
    return "stop_sequence" if isinstance(choice.stop_reason, str) else "eos_token"
