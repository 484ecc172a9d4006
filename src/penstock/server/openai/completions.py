"""``POST /v1/completions``."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import msgspec

from penstock.frontend.outputs import CompletionOutput, RequestOutput
from penstock.interface.messages import EngineRequest, RequestOptions
from penstock.sampling.params import SamplingParams
from penstock.server.engine import Engine
from penstock.server.errors import ApiError
from penstock.server.fanout import Generation, has_news, last, merged, refused_by_name
from penstock.server.keeping import kept
from penstock.server.meter import Meter
from penstock.server.openai import answer_structs
from penstock.server.openai.answer_structs import (
    Completion,
    CompletionChoice,
    CompletionLogprobs,
    PromptLogprobs,
    Usage,
)
from penstock.server.openai.constraint import asked_constraint
from penstock.server.openai.prompts import CompletionPrompt, gap_of, prompts_of
from penstock.server.openai.protocol import CompletionRequest
from penstock.server.openai.sampling import (
    bound_by,
    completion_params,
)
from penstock.server.serving import Serving
from penstock.server.sse import DONE, error_event, event


class CompletionJob:
    """One validated request: its prompts are tokenized and its options checked."""

    def __init__(
        self,
        request: CompletionRequest,
        prompts: Sequence[CompletionPrompt],
        params: SamplingParams,
        engine: Engine,
        meter: Meter,
        options: RequestOptions,
        binding: str = "",
    ) -> None:
        self._request = request
        self._prompts = prompts
        self._params = params
        self._n = request.n or 1
        self._engine = engine
        self._meter = meter
        self._options = options
        self._binding = binding  # the field that the grammar comes from
        self._told: dict[tuple[int, int], int] = {}
        """Characters of the tokens of each choice whose log-probabilities were told. Its text may
        lack some of them for now, so where the next token begins is no matter of how long that is.
        """
        self._id = f"cmpl-{uuid.uuid4().hex}"
        self._created = int(time.time())
        # With echo, max_tokens=0 asks for the prompt alone; the engine still makes one token.
        self._hidden = 1 if request.max_tokens == 0 else 0

    @classmethod
    async def prepare(
        cls, request: CompletionRequest, serving: Serving, meter: Meter
    ) -> CompletionJob:
        """Validate a request. Raises ApiError or RequestError for what is refused before the engine
        runs."""
        engine = serving.engine
        options = kept(serving.caller.options(request), request.cache_keep_s, engine)
        prompts = await prompts_of(request, serving)
        gap = gap_of(request, engine)
        if gap is not None and not request.ignore_eos:
            ends = [*(request.stop_token_ids or ()), *gap.ends]
            request = msgspec.structs.replace(request, stop_token_ids=ends)
        longest = max(len(prompt.token_ids) for prompt in prompts)
        params = completion_params(request, engine.model, longest)
        asked = asked_constraint(request)
        if asked is not None:
            await serving.grammars.check(asked.spec, asked.param, serving.caller.name)
            params = bound_by(params, asked.spec, asked.param, engine.model)
        binding = "" if asked is None else asked.param
        return cls(request, prompts, params, engine, meter, options, binding)

    async def answer(self) -> bytes:
        """The whole answer as JSON."""
        outputs = await last(self._generations())
        choices = [
            self._choice(p, i, output, choice, None)
            for p, output in enumerate(outputs)
            for i, choice in enumerate(self._best(output.outputs))
        ]
        return self._encode(choices, answer_structs.usage(outputs, self._hidden))

    async def events(self) -> AsyncGenerator[bytes, None]:
        """The answer as server-sent events, one or more for each choice."""
        options = self._request.stream_options
        with_usage = options is not None and bool(options.include_usage)
        continuous = options is not None and bool(options.continuous_usage_stats)
        usage: Usage | msgspec.UnsetType | None = None if with_usage else msgspec.UNSET
        sent: dict[tuple[int, int], CompletionOutput] = {}
        newest: dict[int, RequestOutput] = {}
        async with aclosing(merged(self._generations())) as outputs:
            async for p, output in outputs:
                newest[p] = output
                if continuous:
                    usage = answer_structs.usage(list(newest.values()), self._hidden)
                for choice in output.outputs:
                    before = sent.get((p, choice.index))
                    if has_news(choice, before):
                        sent[p, choice.index] = choice
                        part = self._choice(p, choice.index, output, choice, before)
                        yield event(self._encode([part], usage))
        if with_usage:
            yield event(self._encode([], answer_structs.usage(list(newest.values()), self._hidden)))
        yield DONE

    def error(self, failure: ApiError) -> bytes:
        return error_event(failure)

    def _generations(self) -> list[Generation]:
        return [self._generation(i, prompt) for i, prompt in enumerate(self._prompts)]

    def _generation(self, i: int, prompt: CompletionPrompt) -> Generation:
        asked = EngineRequest.of(f"{self._id}-{i}", prompt.token_ids, self._params, self._options)
        outputs = self._engine.outputs(asked, prompt.text)
        if self._binding:
            outputs = refused_by_name(outputs, self._binding)
        return self._meter.measured(asked, outputs)

    def _best(self, choices: list[CompletionOutput]) -> list[CompletionOutput]:
        """Return the ``n`` choices with the highest mean log-probability, best first; ties keep
        their order."""
        if len(choices) == self._n:
            return choices

        def mean(choice: CompletionOutput) -> float:
            return (choice.cumulative_logprob or 0.0) / max(1, choice.num_tokens)

        return sorted(choices, key=mean, reverse=True)[: self._n]

    def _choice(
        self,
        p: int,
        i: int,
        output: RequestOutput,
        choice: CompletionOutput,
        before: CompletionOutput | None,
    ) -> CompletionChoice:
        """What is new in choice ``i`` of prompt ``p`` since ``before``."""
        delta = choice.since(before)
        echoed = (self._prompts[p].text or "") if self._request.echo else ""
        prompt: PromptLogprobs | msgspec.UnsetType = msgspec.UNSET
        if before is None and self._request.prompt_logprobs is not None:
            prompt = output.prompt_logprobs or []
        with_ids = bool(self._request.return_token_ids)
        first_ids = with_ids and before is None
        text = "" if self._hidden else delta.text
        logprobs: CompletionLogprobs | None = None
        if self._request.logprobs is not None:
            top = self._request.logprobs
            offset = len(echoed) if before is None else self._told[p, i]
            fresh = [] if self._hidden else delta.logprobs or []
            logprobs = answer_structs.completion_logprobs(fresh, offset, top)
            self._told[p, i] = offset + sum(map(len, logprobs.tokens))
            if self._request.echo and before is None:
                first = self._engine.tokenizer.token_text(output.prompt_token_ids[0])
                entries = output.prompt_logprobs or []
                known = answer_structs.echoed_logprobs(echoed, first, entries, top)
                logprobs = answer_structs.joined(known, logprobs)
        return CompletionChoice(
            index=p * self._n + i,
            text=echoed + text if before is None else text,
            logprobs=logprobs,
            finish_reason=choice.finish_reason,
            stop_reason=choice.stop_reason,
            prompt_logprobs=prompt,
            prompt_token_ids=output.prompt_token_ids if first_ids else msgspec.UNSET,
            token_ids=([] if self._hidden else delta.token_ids) if with_ids else msgspec.UNSET,
        )

    def _encode(
        self,
        choices: list[CompletionChoice],
        usage: Usage | msgspec.UnsetType | None,
    ) -> bytes:
        return msgspec.json.encode(
            Completion(
                id=self._id,
                created=self._created,
                model=self._request.model,
                choices=choices,
                usage=usage,
            )
        )
