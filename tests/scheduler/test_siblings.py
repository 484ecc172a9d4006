"""Several sequences of one request."""

from __future__ import annotations

from support.fake_model import reference
from support.scheduler_loop import VOCAB, check_complete, make_loop, request

from penstock.interface.messages import FinishReason
from penstock.sampling.draws import sequence_key


def test_the_prompt_of_n_sequences_is_computed_once() -> None:
    loop = make_loop(seqs=8, prefix=False)
    leader = request("a", list(range(14)), n=5, max_tokens=6)
    loop.scheduler.add(leader)
    loop.run()
    check_complete(loop, [leader])
    assert loop.scheduler.stats().tokens_computed == 14 + 5 * 5
    assert len({tuple(loop.outputs["a", i]) for i in range(5)}) == 5


def test_surplus_sequences_wait_and_lose_no_token() -> None:
    loop = make_loop(seqs=2)
    leader = request("a", list(range(14)), n=7, max_tokens=4)
    loop.scheduler.add(leader)
    loop.step()
    assert [len(loop.outputs["a", i]) for i in range(7)] == [1] * 7
    assert len(loop.scheduler.waiting) == 5
    loop.run()
    check_complete(loop, [leader])


def test_sequences_that_end_with_their_first_token_leave_the_others() -> None:
    prompt = [3, 1, 2]
    first = [reference(prompt, sequence_key(1, i), VOCAB, 4)[0][0] for i in range(6)]
    loop = make_loop(seqs=3)
    leader = request("a", prompt, n=6, stop_token_ids=(first[0], first[4]))
    loop.scheduler.add(leader)
    loop.step()
    assert {("a", 0), ("a", 4)} <= set(loop.finished)
    assert leader.finish_reason is FinishReason.STOP
    assert leader.stop_reason == first[0]
    loop.run()
    assert len(loop.finished) == 6
    assert loop.scheduler.cache.num_used_blocks == 0
