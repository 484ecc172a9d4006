"""A scheduler with a fake model, requests for it, and their expected results."""

from __future__ import annotations

from penstock.cache.state_slots import StateLimits
from penstock.interface.messages import EngineRequest, Tenant
from penstock.length_limits import LengthLimits
from penstock.pooling.params import PoolingParams
from penstock.pooling.pooler import Pooler
from penstock.sampling.params import SamplingParams
from penstock.scheduler.scheduler import Scheduler
from penstock.scheduler.sequence import SequenceState, make_sequences
from support.fake_model import Loop, ToldCache, Windows, as_hidden, reference

VOCAB = 50
EOS = 7
NOBODY = Tenant()


def make_loop(
    num_blocks: int = 64,
    seqs: int = 4,
    budget: int = 16,
    context: int = 128,
    size: int = 4,
    prefix: bool = True,
    ahead: bool = False,
    prompt_rows: int | None = None,
    windows: Windows = (None,),
    states: StateLimits | None = None,
    surely: bool = False,
) -> Loop:
    cache = ToldCache(
        num_blocks, size, windows=windows, enable_prefix_caching=prefix, states=states
    )
    scheduler = Scheduler(
        cache, seqs, budget, LengthLimits(context), max_prompt_rows=prompt_rows, surely=surely
    )
    return Loop(scheduler, VOCAB, ahead)


def request(
    name: str,
    prompt: list[int],
    seed: int = 1,
    priority: int = 0,
    salt: str = "",
    runs_ahead: bool = True,
    pooling: PoolingParams | None = None,
    tenant: Tenant = NOBODY,
    **params: object,
) -> SequenceState:
    sampling = SamplingParams(**{"max_tokens": 5, "ignore_eos": True, **params})  # type: ignore
    message = EngineRequest(
        request_id=name,
        prompt_token_ids=prompt,
        params=sampling,
        pooling=pooling,
        priority=priority,
        cache_salt=salt,
        tenant=tenant,
    )
    leader = make_sequences(message, seed, (EOS,))
    for sequence in (leader, *leader.siblings):
        sequence.runs_ahead = runs_ahead
    return leader


def expected(
    leader: SequenceState, index: int, windows: Windows = (None,), states: bool = False
) -> tuple[list[int], list[int]]:
    return reference(
        leader.token_ids[: leader.num_prompt_tokens].tolist(),
        (leader, *leader.siblings)[index].key,
        VOCAB,
        leader.max_total_tokens,
        leader.eos_token_ids,
        windows,
        states,
    )


def expected_embedding(
    leader: SequenceState, pooling: PoolingParams, windows: Windows, states: bool
) -> bytes:
    prompt = leader.token_ids.tolist()
    _, rows = reference(prompt, 0, VOCAB, len(prompt) + 1, windows=windows, states=states)
    pooler = Pooler(pooling, len(prompt))
    pooler.take(0, as_hidden(rows))
    return pooler.vector()


def check_complete(loop: Loop, leaders: list[SequenceState]) -> None:
    """Every sequence ended with the tokens it gets when it runs alone, and nothing is left."""
    windows, states = loop.scheduler.cache.windows, loop.scheduler.cache.num_states[1] > 0
    for leader in leaders:
        name = leader.request_id
        if leader.pooling is not None:
            assert loop.outputs[name, 0] == []
            vector = expected_embedding(leader, leader.pooling, windows, states)
            assert loop.embeddings[name] == vector
            continue
        for index in range(leader.params.n):
            tokens, rows = expected(leader, index, windows, states)
            assert loop.outputs[name, index] == tokens, (name, index)
            assert loop.finished[name, index].output_token_ids.tolist() == tokens
        if leader.params.prompt_logprobs is not None:
            assert loop.prompt_rows.get(name, {}) == dict(enumerate(rows[:-1]))
        else:
            assert name not in loop.prompt_rows
    assert not loop.scheduler.has_work
    assert loop.scheduler.cache.num_used_blocks == 0
    assert loop.scheduler.cache.num_states[0] == 0
    assert not loop.scheduler._queues.requests
