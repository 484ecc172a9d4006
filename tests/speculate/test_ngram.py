from __future__ import annotations

import pytest

from penstock.interface.messages import EngineRequest, FinishReason
from penstock.sampling.params import SamplingParams
from penstock.scheduler.draft import Draft
from penstock.scheduler.sequence import SequenceState, make_sequences
from penstock.speculate.draft import Wanted
from penstock.speculate.ngram import NgramProposer
from penstock.speculative_config import Ngram


def sequence(tokens: list[int], salt: str = "") -> SequenceState:
    request = EngineRequest(
        request_id="a", prompt_token_ids=tokens, params=SamplingParams(), cache_salt=salt
    )
    made = make_sequences(request, 0)
    made.max_total_tokens = 10_000
    return made


def drafted(proposer: NgramProposer, asked: SequenceState, most: int = 4) -> list[int] | None:
    (draft,) = proposer.propose([Wanted(asked, most)])
    proposer.check_integrity()
    return None if draft is None else draft.token_ids.tolist()


def test_goes_on_as_it_did_last_time() -> None:
    proposer = NgramProposer(Ngram(min_match=2))
    asked = sequence([1, 2, 3, 9, 1, 2, 4, 5, 6, 7, 1, 2])
    assert drafted(proposer, asked) == [4, 5, 6, 7]
    asked.append([4, 8])
    assert drafted(proposer, asked) is None
    asked.append([1, 2, 4])
    assert drafted(proposer, asked, 2) == [8, 1]


def test_short_matches_are_left_alone() -> None:
    text = [5, 6, 7, 8, 5, 6]
    assert drafted(NgramProposer(Ngram(min_match=2)), sequence(text)) is not None
    assert drafted(NgramProposer(Ngram(min_match=3)), sequence(text)) is None


def test_longer_matches_are_of_another_group() -> None:
    proposer = NgramProposer(Ngram(min_match=1))
    kinds = []
    for length in (1, 3, 4, 7, 8, 15, 16, 40):
        text = list(range(100, 100 + length))
        (draft,) = proposer.propose([Wanted(sequence([*text, 1, *text]), 4)])
        assert draft is not None
        kinds.append(draft.kind)
    assert kinds == [0, 0, 1, 1, 2, 2, 3, 3]
    assert max(kinds) < proposer.kinds


def test_a_long_prompt_is_read_over_several_steps() -> None:
    proposer = NgramProposer(Ngram(min_match=3))
    asked = sequence([*range(5000), 0, 1, 2])
    assert [drafted(proposer, asked) for _ in range(3)] == [None, None, [3, 4, 5, 6]]


def end(proposer: NgramProposer, ended: SequenceState) -> None:
    drafted(proposer, ended)
    ended.finish_reason = FinishReason.STOP


def test_ended_requests_are_remembered() -> None:
    proposer = NgramProposer(Ngram(min_match=2, shared_tokens=1024))
    end(proposer, sequence([1, 2, 3, 4, 5]))
    end(proposer, sequence([6, 7]))
    assert drafted(proposer, sequence([9, 2, 3])) == [4, 5]
    assert drafted(proposer, sequence([9, 9, 3])) is None
    assert drafted(proposer, sequence([8, 4, 5])) is None  # what came next was another request
    # Its own text first.
    assert drafted(proposer, sequence([2, 3, 8, 2, 3]), 1) == [8]


def test_requests_with_a_salt_share_nothing() -> None:
    proposer = NgramProposer(Ngram(min_match=2, shared_tokens=1024))
    end(proposer, sequence([1, 2, 3, 4, 5], "secret"))
    assert drafted(proposer, sequence([9, 2, 3])) is None
    end(proposer, sequence([1, 2, 3, 4, 5]))
    assert drafted(proposer, sequence([9, 2, 3], "secret")) is None
    assert drafted(proposer, sequence([9, 2, 3])) == [4, 5]


def test_a_reset_forgets_ended_requests() -> None:
    proposer = NgramProposer(Ngram(min_match=2, shared_tokens=1024))
    end(proposer, sequence([1, 2, 3, 4, 5]))
    drafted(proposer, sequence([6, 7]))  # which takes it into the shared text
    end(proposer, sequence([11, 12, 13, 14]))  # is remembered, and not yet in it
    running = sequence([21, 22, 23, 24])
    drafted(proposer, running)
    proposer.reset()
    assert drafted(proposer, sequence([9, 2, 3])) is None
    assert drafted(proposer, sequence([9, 11, 12])) is None
    end(proposer, running)
    assert drafted(proposer, sequence([9, 21, 22])) == [23, 24]


def test_what_is_remembered_is_bounded() -> None:
    proposer = NgramProposer(Ngram(min_match=2, shared_tokens=1024))
    for first in range(0, 6000, 300):
        end(proposer, sequence(list(range(first, first + 300))))
    end(proposer, sequence(list(range(10_000, 12_000))))  # longer than all that is remembered
    assert drafted(proposer, sequence([9, 11_000, 11_001]), 2) is None
    assert drafted(proposer, sequence([9, 11_900, 11_901]), 2) == [11_902, 11_903]
    assert drafted(proposer, sequence([9, 5901, 5902]), 2) == [5903, 5904]
    assert drafted(proposer, sequence([9, 1, 2]), 2) is None


@pytest.mark.parametrize("most", [1, 7])
def test_no_more_than_wanted(most: int) -> None:
    proposer = NgramProposer(Ngram(min_match=1))
    (draft,) = proposer.propose([Wanted(sequence([4] * 9), most)])
    assert isinstance(draft, Draft)
    assert draft.token_ids.tolist() == [4] * most
