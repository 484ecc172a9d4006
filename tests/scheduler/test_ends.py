"""How sequences end."""

from __future__ import annotations

from support.fake_model import Loop, reference
from support.scheduler_loop import EOS, VOCAB, make_loop, request

from penstock.interface.messages import FinishReason
from penstock.sampling.draws import sequence_key
from penstock.scheduler.sequence import SequenceState


def _end(loop: Loop, leader: SequenceState) -> tuple[int, FinishReason | None, int | None]:
    loop.scheduler.add(leader)
    loop.run()
    return leader.num_output_tokens, leader.finish_reason, leader.stop_reason


def test_how_sequences_end() -> None:
    prompt = [1, 2, 3]
    tokens = reference(prompt, sequence_key(1, 0), VOCAB, 60)[0]
    third = tokens[2]
    assert third not in tokens[:2]
    again = next(i for i in range(3, 57) if tokens[i] == third) + 1
    loop = make_loop()
    length, stop = FinishReason.LENGTH, FinishReason.STOP
    assert _end(loop, request("a", prompt, max_tokens=9)) == (9, length, None)
    assert _end(loop, request("b", prompt, max_tokens=3, stop_token_ids=(third,))) == (
        3, stop, third,
    )  # fmt: skip
    kinds = {"max_tokens": 60, "stop_token_ids": (third,)}
    assert _end(loop, request("c", prompt, min_tokens=2, **kinds)) == (3, stop, third)
    assert _end(loop, request("d", prompt, min_tokens=3, **kinds)) == (again, stop, third)
    assert _end(loop, request("e", prompt, max_tokens=None)) == (125, length, None)
    assert _end(loop, request("f", prompt, max_tokens=125)) == (125, length, None)


def test_eos_ends_unless_ignored() -> None:
    prompt = next(
        [p] for p in range(99) if EOS in reference([p], sequence_key(1, 0), VOCAB, 30)[0][3:20]
    )  # fmt: skip
    at = reference(prompt, sequence_key(1, 0), VOCAB, 30)[0].index(EOS) + 1
    loop = make_loop()
    kinds = {"max_tokens": 29, "stop_token_ids": (EOS,)}
    assert _end(loop, request("a", prompt, ignore_eos=False, **kinds)) == (
        at, FinishReason.STOP, None,
    )  # fmt: skip
    assert _end(loop, request("b", prompt, **kinds)) == (at, FinishReason.STOP, EOS)
    assert _end(loop, request("c", prompt, max_tokens=29)) == (29, FinishReason.LENGTH, None)


def test_a_step_may_bring_several_tokens_and_the_end_cuts_them() -> None:
    leader = request("a", [1], max_tokens=10, stop_token_ids=(5,))
    leader.max_total_tokens = 11
    assert leader.append([3, 4]) == [3, 4]
    assert leader.append([6, 5, 7]) == [6, 5]
    assert leader.output_token_ids.tolist() == [3, 4, 6, 5]
