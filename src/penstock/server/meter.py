"""Counts the generations of one HTTP request as they pass, for metrics and for the log."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import NamedTuple

from penstock.errors import OverloadedError, RequestError
from penstock.frontend.outputs import CompletionOutput, RequestOutput
from penstock.interface.messages import EngineRequest
from penstock.sampling.params import SamplingParams
from penstock.server.metrics import Counts
from penstock.server.observer import Observer
from penstock.server.open_requests import OpenRequest
from penstock.server.traced import TracedGeneration
from penstock.service_level import Limit


class Meter:
    """Counts for one HTTP request. Times come from the engine's front end, so a slow client adds
    nothing to them."""

    def __init__(
        self,
        counts: Counts,
        request: OpenRequest,
        log_prompts: bool,
        observer: Observer | None = None,
        slo: Sequence[Limit] = (),
    ) -> None:
        self._counts = counts
        self._request = request
        self._log_prompts = log_prompts
        self._observer = observer
        self._slo = slo

    async def measured(
        self, asked: EngineRequest, outputs: AsyncGenerator[RequestOutput, None]
    ) -> AsyncGenerator[RequestOutput, None]:
        """Yield the outputs of the generation that was asked for unchanged, and count them."""
        before: RequestOutput | None = None
        served, failed = True, False
        try:
            async with aclosing(outputs):
                async for output in outputs:
                    self._count(output, before)
                    before = output
                    yield output
        except OverloadedError:
            self._counts.refused_full += 1
            self._counts.judged += 1
            served = False
            raise
        except Exception as error:
            self._counts.failures += 1
            failed = True
            # What asks for the impossible is no part of the workload.
            served = before is not None or not isinstance(error, RequestError)
            self._counts.judged += served
            raise
        finally:
            if before is not None:
                self._count_end(asked, before)
            if self._observer is not None and served:
                self._observer.ended(asked, self._request, before, failed)

    def _count(self, output: RequestOutput, before: RequestOutput | None) -> None:
        """Count what is new in ``output`` since ``before``, the output that preceded it."""
        counts, times = self._counts, output.metrics
        if times.first_token_time is None or times.last_token_time is None:
            return
        began = None if before is None else before.metrics.last_token_time
        if began is None:
            counts.prompt_tokens += len(output.prompt_token_ids)
            counts.cached_tokens += output.num_cached_tokens
            counts.prompt_lengths.add(len(output.prompt_token_ids))
            if output.embedding is None:
                counts.first_token.add(times.first_token_time - self._request.began)
            if times.scheduled_time is not None:
                counts.queue.add(max(0.0, times.scheduled_time - times.arrival_time))
                counts.prefill.add(times.first_token_time - times.scheduled_time)
        for i, choice in enumerate(output.outputs):
            had = 0 if before is None else before.outputs[i].num_tokens
            new = choice.num_tokens - had
            counts.generation_tokens += new
            # The first token of a sequence ends no interval between tokens.
            gaps = new if had else new - 1
            if gaps > 0:
                start = began if had and began is not None else times.first_token_time
                counts.inter_token.add((times.last_token_time - start) / gaps, gaps)

    def _count_end(self, asked: EngineRequest, output: RequestOutput) -> None:
        counts = self._counts
        for choice in output.outputs:
            counts.finished[_reason(choice)] += 1
        if output.embedding is not None:
            self._count_embedded(output)
        else:
            self._count_generated(asked.params, output)
        self._note(output)

    def _count_embedded(self, output: RequestOutput) -> None:
        times = output.metrics
        if times.finished_time is not None:
            self._counts.end_to_end.add(times.finished_time - self._request.began)
            if times.scheduled_time is not None:
                self._counts.inference.add(times.finished_time - times.scheduled_time)

    def _count_generated(self, asked: SamplingParams, output: RequestOutput) -> None:
        counts, times = self._counts, output.metrics
        counts.asked_sequences.add(asked.n)
        if asked.max_tokens is not None:
            counts.asked_tokens.add(asked.max_tokens)
        counts.last_end_ms = time.time_ns() // 10**6
        first, last = times.first_token_time, times.last_token_time
        for choice in output.outputs:
            counts.output_lengths.add(choice.num_tokens)
        counts.longest_outputs.add(max(choice.num_tokens for choice in output.outputs))
        if output.finished and first is not None and last is not None:
            counts.end_to_end.add(last - self._request.began)
            counts.decode.add(last - first)
            if times.scheduled_time is not None:
                counts.inference.add(last - times.scheduled_time)
            longest = max(choice.num_tokens for choice in output.outputs)
            tpot = (last - first) / (longest - 1) if longest > 1 else None
            if tpot is not None:
                counts.per_output_token.add(tpot)
            began = self._request.began
            answer = _Times(first - began, tpot, last - began)
            counts.judged += 1
            counts.within_slo += all(limit.met(answer) for limit in self._slo)

    def _note(self, output: RequestOutput) -> None:
        """Record a finished output for the access log and for the trace."""
        if self._request.generations is not None:
            self._request.generations.append(TracedGeneration.of(output))
        notes = self._request.notes
        _add(notes, "prompt_tokens", len(output.prompt_token_ids))
        _add(notes, "cached_tokens", output.num_cached_tokens)
        _add(notes, "output_tokens", sum(choice.num_tokens for choice in output.outputs))
        first = output.metrics.first_token_time
        if output.embedding is None and first is not None and "first_token_s" not in notes:
            notes["first_token_s"] = round(first - self._request.began, 6)
        for choice in output.outputs:
            _add(notes, f"finish_{_reason(choice)}", 1)
        if self._log_prompts:
            generations = notes.setdefault("generations", [])
            assert isinstance(generations, list)
            generations.append(
                {
                    "id": output.request_id,
                    "prompt": output.prompt,
                    "prompt_token_ids": output.prompt_token_ids,
                    "outputs": [choice.text for choice in output.outputs],
                }
            )


class _Times(NamedTuple):
    """What a server knows of :class:`~penstock.service_level.AnswerTimes`."""

    ttft_s: float | None
    tpot_s: float | None
    e2el_s: float | None
    ttfo_s: float | None = None
    ttst_s: float | None = None


def _reason(choice: CompletionOutput) -> str:
    return choice.finish_reason or "abort"  # left by its client, or ended from outside


def _add(notes: dict[str, object], name: str, value: int) -> None:
    before = notes.get(name, 0)
    assert isinstance(before, int)
    notes[name] = before + value
