"""Random requests with all that can happen to them, and the updates that an engine sent for
each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
from hypothesis import strategies as st

from penstock.engine.core import EngineCore
from penstock.interface.logprobs import TokenLogprobs
from penstock.interface.messages import EngineRequest, FinishReason, SequenceUpdate
from penstock.sampling.params import SamplingParams
from support.overlapped import VOCAB


@dataclass(frozen=True)
class Arrival:
    """A request, when it comes, and what becomes of it."""

    at: int
    prompt: list[int]
    params: SamplingParams
    priority: int
    abort_at: int | None  # this many steps after it came; its id is used again at once
    stop_after: int | None  # tokens of index 0, as when a stop string is seen
    reset: bool  # the prefix cache, when it comes
    prediction: tuple[int, ...] = ()


@dataclass
class Story:
    """The updates of one sequence."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    end: tuple[FinishReason, int | None, str | None] | None = None

    def take(self, update: SequenceUpdate) -> None:
        assert self.end is None, "output after the end"
        self.tokens += update.token_ids
        self.logprobs += update.logprobs or []
        if update.prompt_logprobs is not None:
            assert self.prompt_logprobs is None
            self.prompt_logprobs = update.prompt_logprobs
        if update.finish_reason is not None:
            self.end = (update.finish_reason, update.stop_reason, update.error)

    def ended(self, *reasons: FinishReason) -> bool:
        return self.end is not None and self.end[0] in reasons


Stories = dict[tuple[str, int, int], Story]
"""Stories by request id, how often that was used before, and index."""


def play(core: EngineCore, arrivals: list[Arrival], check: Callable[[], None]) -> Stories:
    stories: Stories = {}
    uses: dict[str, int] = {}
    now = 0

    def take(updates: list[SequenceUpdate]) -> None:
        for update in updates:
            name = (update.request_id, uses[update.request_id], update.index)
            stories[name].take(update)

    def add(name: str, arrival: Arrival, prompt: list[int]) -> None:
        uses[name] = uses.get(name, -1) + 1
        for index in range(arrival.params.n):
            stories[name, uses[name], index] = Story()
        core.add_request(
            EngineRequest(
                request_id=name,
                prompt_token_ids=prompt,
                params=arrival.params,
                priority=arrival.priority,
                prediction=list(arrival.prediction),
            )
        )

    while now <= 30 or core.has_work:
        for i, arrival in enumerate(arrivals):
            if arrival.at == now:
                if arrival.reset:
                    core.reset_prefix_cache()
                add(f"{i}", arrival, arrival.prompt)
            if arrival.abort_at is not None and arrival.at + arrival.abort_at == now:
                take(core.abort([f"{i}"]))
                add(f"{i}", arrival, [*arrival.prompt, 7])
        updates = core.step()
        take(updates)
        for i, arrival in enumerate(arrivals):
            if arrival.stop_after is not None and arrival.at <= now:
                story = stories[f"{i}", uses[f"{i}"], 0]
                if len(story.tokens) >= arrival.stop_after and story.end is None:
                    take(core.abort([f"{i}"], 0))
        check()
        now += 1
        assert now < 5000, "no end in sight"
    return stories


PARAMS = st.builds(
    SamplingParams,
    n=st.sampled_from([1, 1, 1, 2, 3]),
    temperature=st.sampled_from([0.0, 0.0, 0.7, 1.3]),
    top_k=st.sampled_from([0, 0, 20]),
    repetition_penalty=st.sampled_from([1.0, 1.0, 1.3]),
    frequency_penalty=st.sampled_from([0.0, 0.0, 0.5]),
    repeat_last_n=st.sampled_from([None, None, -1, 0, 5]),
    seed=st.integers(0, 3),
    max_tokens=st.one_of(st.integers(1, 4), st.integers(5, 70)),
    stop_token_ids=st.sampled_from([(), (), (5, 6, 7, 8, 9)]),
    ignore_eos=st.booleans(),
    logprobs=st.sampled_from([None, None, 2]),
    prompt_logprobs=st.sampled_from([None, None, 1]),
    logit_bias=st.sampled_from([None, None, {3: 2.5}]),
)


@st.composite
def arrivals(draw: st.DrawFn) -> Arrival:
    stem = draw(st.sampled_from([[3] * 70, [3] * 32 + [4] * 38]))
    prompt = stem[: draw(st.integers(0, 70))] + [draw(st.integers(3, VOCAB - 2))]
    params = draw(PARAMS)
    least = draw(st.sampled_from([0, 0, 3]))
    return Arrival(
        at=draw(st.integers(0, 12)),
        prompt=prompt,
        params=msgspec.structs.replace(params, min_tokens=min(least, params.max_tokens or 0)),
        priority=draw(st.integers(0, 1)),
        abort_at=draw(st.one_of(st.none(), st.none(), st.integers(0, 9))),
        stop_after=draw(st.one_of(st.none(), st.none(), st.integers(1, 9))),
        reset=draw(st.integers(0, 9)) == 0,
    )


def same(seen: Stories, plain: Stories) -> None:
    assert seen.keys() == plain.keys()
    for name, story in seen.items():
        other = plain[name]
        # How far a sequence is when it is aborted, or when another one of its request fails, is a
        # matter of steps.
        cut = {FinishReason.ABORT}
        if (*name[:2], 1) in seen:
            cut.add(FinishReason.ERROR)
        if story.ended(*cut) or other.ended(*cut):
            shared = min(len(story.tokens), len(other.tokens))
            assert story.tokens[:shared] == other.tokens[:shared], name
            assert story.logprobs[:shared] == other.logprobs[:shared], name
        else:
            assert story == other, name
