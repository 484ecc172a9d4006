"""What is kept of a request that ends."""

from __future__ import annotations

import asyncio

from penstock.frontend.outputs import (
    CompletionOutput,
    RequestMetrics,
    RequestOutput,
    SequenceRecord,
)
from penstock.interface.messages import EngineRequest, FinishReason
from penstock.sampling.params import SamplingParams
from penstock.server.observer import Observer
from penstock.server.open_requests import OpenRequest
from penstock.workload.requests import ObservedRequests
from penstock.workload.summary import summarize


def end(observer: Observer, prompt: list[int], *answers: list[int]) -> None:
    """A request with these answers ends; the first one stops, the others are cut."""
    ends = [FinishReason.STOP, *[FinishReason.LENGTH] * len(answers)]
    records = [
        SequenceRecord(None, token_ids=answer, finish_reason=reason)
        for answer, reason in zip(answers, ends, strict=False)
    ]
    began = asyncio.run(_arrived())
    output = RequestOutput(
        request_id="r",
        prompt=None,
        prompt_token_ids=prompt,
        outputs=[CompletionOutput(i, record) for i, record in enumerate(records)],
        finished=True,
        prompt_logprobs=None,
        num_cached_tokens=0,
        metrics=RequestMetrics(began.began, began.began, began.began, began.began),
    )
    request = EngineRequest(
        request_id="r", prompt_token_ids=prompt, params=SamplingParams(n=len(answers))
    )
    observer.ended(request, began, output)


async def _arrived() -> OpenRequest:
    ended = asyncio.get_running_loop().create_future()
    return OpenRequest("r", "POST", "/v1/chat/completions", "nobody", ended)


def test_of_several_answers_lengths_and_hashes_are_of_the_longest() -> None:
    observer = Observer()
    prompt, short, long = list(range(64)), list(range(100, 140)), list(range(200, 400))
    end(observer, prompt, short, long)
    end(observer, [*prompt, *long, 7, 8, 9], [1])
    end(observer, [*prompt, *short, 7, 8, 9], [1])
    found = ObservedRequests.kept(observer.ring.kept())
    assert found.output.tolist() == [200, 1, 1]
    assert found.all_output.tolist() == [240, 1, 1]
    workload = summarize(found)
    assert workload.ends == {"stop": 2, "length": 1}
    assert workload.conversations is not None
    assert workload.conversations.new_tokens is not None
    # A prompt that continues the short answer is none of a conversation.
    assert workload.conversations.requests == 1
    assert (workload.conversations.new_tokens.mean, workload.conversations.new_tokens.max) == (3, 3)
