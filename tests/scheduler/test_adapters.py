"""Slots of adapters: who gets one, who waits, and which is reused."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.cache.kv_cache import KvCache
from penstock.interface.adapters import Adapter
from penstock.interface.messages import EngineRequest
from penstock.length_limits import LengthLimits
from penstock.sampling.beam_search import BeamSearch
from penstock.sampling.params import SamplingParams
from penstock.scheduler.output import ScheduledStep
from penstock.scheduler.scheduler import Scheduler
from penstock.scheduler.sequence import SequenceState, Status, make_sequences

ADAPTERS = [Adapter(f"digest {i}", 4, {}) for i in range(5)]


class Play:
    """A scheduler whose steps are looked at: each sequence's adapter is in the slot that the step
    names."""

    def __init__(self, slots: int, blocks: int = 100, seqs: int = 4) -> None:
        cache = KvCache(blocks, 4)
        self.scheduler = Scheduler(cache, seqs, 16, LengthLimits(40), adapter_slots=slots)
        self.slots: dict[int, Adapter] = {}
        self.loads: list[str] = []
        self._made = 0

    def add(
        self,
        adapter: Adapter | None,
        prompt: int = 3,
        tokens: int = 4,
        n: int = 1,
        search: BeamSearch | None = None,
    ) -> SequenceState:
        self._made += 1
        request = EngineRequest(
            request_id=f"r{self._made}",
            prompt_token_ids=[1] * prompt,
            params=SamplingParams(max_tokens=tokens, ignore_eos=True, n=n, beam_search=search),
            adapter="" if adapter is None else adapter.digest,
        )
        leader = make_sequences(request, 1, (), adapter)
        self.scheduler.add(leader)
        return leader

    def step(self) -> ScheduledStep | None:
        step = self.scheduler.schedule()
        if step is None:
            return None
        for slot, adapter in step.adapter_loads:
            used = {
                each.adapter_slot for each in self.scheduler.running if each.adapter is not adapter
            }
            assert slot not in used, "a slot is taken from a running sequence"
            self.slots[slot] = adapter
            self.loads.append(adapter.digest)
        names = step.adapters or [-1] * len(step.sequences)
        for slot, each in zip(names, step.sequences, strict=True):
            adapter = each.sequence.adapter
            assert (slot < 0) == (adapter is None)
            assert adapter is None or self.slots[slot] is adapter
        self.scheduler.update(step, [[] if each.is_beam else [1] for each in step.samples])
        self.scheduler.check_integrity()
        return step

    def run(self) -> None:
        while self.step() is not None:
            pass
        assert not self.scheduler.has_work


@settings(max_examples=60, deadline=None)
@given(
    slots=st.integers(1, 4),
    blocks=st.integers(10, 30),
    asked=st.lists(
        st.tuples(
            st.sampled_from([None, *ADAPTERS]),
            st.integers(1, 20),
            st.integers(1, 12),
            st.integers(1, 3),
            st.integers(0, 3),
        ),
        min_size=1,
        max_size=12,
    ),
)
def test_every_request_ends_with_its_adapter_in_its_slot(
    slots: int, blocks: int, asked: list[tuple[Adapter | None, int, int, int, int]]
) -> None:
    play = Play(slots, blocks)
    for adapter, prompt, tokens, n, steps in asked:
        play.add(adapter, prompt, tokens, n)
        for _ in range(steps):
            play.step()
    play.run()


def test_the_adapter_that_was_longest_not_asked_for_goes() -> None:
    play = Play(slots=2)
    a, b, c = ADAPTERS[:3]
    for adapter in (a, b, a, c, a, b):
        play.add(adapter)
        play.run()
    assert play.loads == [each.digest for each in (a, b, c, b)]


def order_of_starts(play: Play) -> list[SequenceState]:
    """Who runs first, second and so on, until all have ended."""
    begun: list[SequenceState] = []
    while play.step() is not None:
        begun += [each for each in play.scheduler.running if each not in begun]
    return begun


def test_who_waits_for_a_slot_is_passed_by_those_who_need_none() -> None:
    play = Play(slots=1)
    first, waits, plain = (play.add(adapter) for adapter in (ADAPTERS[0], ADAPTERS[1], None))
    play.step()
    assert {each for each in (first, waits, plain) if each.status is Status.RUNNING} == {
        first,
        plain,
    }
    assert order_of_starts(play)[-1] is waits


def test_those_behind_who_waits_do_not_take_what_it_claims() -> None:
    """One slot is claimed, whose adapter was longest not asked for, and the other one goes on."""
    play = Play(slots=2, seqs=10)
    a, b, c = ADAPTERS[:3]
    play.add(a), play.add(b)
    play.step()
    waits, like_a, like_b, last = play.add(c), play.add(a), play.add(b), play.add(None)
    play.step()
    assert [each.status for each in (waits, like_a, like_b, last)] == [
        Status.WAITING,
        Status.WAITING,
        Status.RUNNING,
        Status.RUNNING,
    ]
    begun = order_of_starts(play)
    assert begun.index(waits) < begun.index(like_a)


@settings(max_examples=60, deadline=None)
@given(
    slots=st.integers(1, 3),
    seqs=st.integers(2, 8),
    longest=st.integers(1, 12),
    arrivals=st.lists(
        st.lists(st.tuples(st.integers(-1, 3), st.integers(1, 12)), max_size=3), max_size=30
    ),
)
def test_nobody_waits_for_ever_while_others_come(
    slots: int, seqs: int, longest: int, arrivals: list[list[tuple[int, int]]]
) -> None:
    """However many come behind it, a request with an adapter begins once those have ended that
    were before it: each of them runs for at most so many steps, one after the other."""
    play = Play(slots, blocks=400, seqs=seqs)
    before = [play.add(ADAPTERS[i % 4], tokens=longest) for i in range(slots + 1)]
    last = play.add(ADAPTERS[4], tokens=2)
    bound = (len(before) + 1) * (longest + 2)
    for number in range(bound):
        for which, tokens in arrivals[number] if number < len(arrivals) else [(-1, 3), (0, 3)]:
            play.add(None if which < 0 else ADAPTERS[which], tokens=min(tokens, longest))
        play.step()
        if last.status is not Status.WAITING:
            break
    assert last.status is not Status.WAITING, bound


def test_a_beam_that_takes_anothers_place_takes_its_slot() -> None:
    """The second beam finds no place when the prompt is computed, and in the same step one becomes
    free; it never was admitted by itself."""
    play = Play(slots=1, seqs=2)
    leader = play.add(ADAPTERS[0], n=2, search=BeamSearch(width=2))
    play.add(None, tokens=1)
    play.step()
    (sibling,) = leader.siblings
    assert sibling.status is Status.WAITING
    beams = play.scheduler.go_on([leader, sibling], [0, 0], [1, 2])
    assert [each.status for each in beams] == [Status.RUNNING] * 2
    step = play.step()
    assert step is not None
    assert step.adapters == [0, 0]
    assert play.scheduler.stats().tokens_generated == 3
