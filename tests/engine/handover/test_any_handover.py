"""Whatever comes of handovers, in any order, beside anything else: answers are those of one
engine."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.bitwise import prompt
from support.handed import LLAMA, Answers, complete, config, folder_of, plain, request
from support.needs import needs_native

from penstock.cache.geometry import BLOCK_SIZE
from penstock.cache.prefix import Key, chain_keys
from penstock.engine.core import EngineCore
from penstock.engine.handover.decode import DecodeCore
from penstock.engine.handover.inbox import Inbox
from penstock.engine.handover.peer import Over, Piece
from penstock.engine.handover.rule import Load
from penstock.engine.handover.wire import Ask
from penstock.handover_config import DecodeRole
from penstock.interface.blocks import BlockBytes
from penstock.interface.messages import SequenceUpdate
from penstock.peers.address import Address
from penstock.processes.wake import Wake

pytestmark = needs_native
SHARED = prompt(1, 140)
PROMPTS = [SHARED[:45], SHARED[:70] + prompt(2, 30), SHARED, prompt(3, 97)]
TOKENS = 4
HERE = Address("127.0.0.1", 1)
IDLE = Load(0, 0.0)


@dataclass(eq=False)
class Scripted:
    """A peer that answers as a test says."""

    address: Address = HERE
    connected: bool = True
    load: Load = IDLE
    bandwidth: float = 1e9
    received_bytes: int = 0
    asked: dict[int, Ask] = field(default_factory=dict)

    def ask(self, ask: Ask, blocks: int) -> bool:
        assert len(ask.token_ids) == blocks * BLOCK_SIZE * 4
        assert 0 <= ask.first < blocks
        self.asked[ask.number] = ask
        return True

    def cancel(self, number: int) -> None:
        self.asked.pop(number, None)

    def close(self) -> None:
        pass


@pytest.fixture(scope="module")
def cores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[EngineCore, EngineCore]]:
    """An engine that computes what others would, and one with hardly room for what it runs."""
    folder = folder_of(tmp_path_factory.mktemp("model"), LLAMA)
    source = plain(config(folder))
    core = plain(config(folder, kv_cache_bytes=16 * 12288, max_model_len=256))
    yield source, core
    source.close()
    core.close()


@pytest.fixture(scope="module")
def expected(cores: tuple[EngineCore, EngineCore]) -> list[list[tuple[int, Any]]]:
    asked = [request(str(i), p, max_tokens=TOKENS) for i, p in enumerate(PROMPTS)]
    answers = complete(cores[0], asked)
    return [answers[str(i), 0] for i in range(len(PROMPTS))]


def keys_of(ask: Ask) -> list[Key]:
    tokens = array("i")
    tokens.frombytes(ask.token_ids)
    return chain_keys(ask.salt, tokens, len(tokens) // BLOCK_SIZE, BLOCK_SIZE)


class Play:
    """A decode engine, and what is done to it."""

    def __init__(self, source: EngineCore, core: EngineCore, draw: Any) -> None:
        assert source.blocks is not None
        assert core.blocks is not None
        core.abort(str(i) for i in range(99))  # what a failed example has left
        core.reset_prefix_cache()
        self.source, self.draw = source.blocks, draw
        self.peer, self.inbox = Scripted(), Inbox[Piece | Over](Wake(), 1 << 30)
        role = DecodeRole(prefill=(HERE,), least_tokens=1)
        peers: Any = [self.peer]
        self.core = DecodeCore(core, core.blocks, role, self.inbox, peers)
        self.answers: Answers = {}
        self.ended: set[str] = set()
        self.submitted: dict[str, int] = {}

    def submit(self) -> None:
        name, which = str(len(self.submitted)), self.draw(st.integers(0, len(PROMPTS) - 1))
        self.core.add_request(request(name, PROMPTS[which], max_tokens=TOKENS))
        self.submitted[name] = which

    def deliver(self, damaged: bool = False) -> None:
        if not self.peer.asked:
            return
        ask = self.peer.asked[self.draw(st.sampled_from(sorted(self.peer.asked)))]
        keys = keys_of(ask)
        first = self.draw(st.integers(0, len(keys) - 1))
        end = self.draw(st.integers(first + 1, len(keys)))
        content = self.source.read(keys[first:end], 0)
        if damaged:
            data = content.data.copy()
            data[self.draw(st.integers(0, len(data) - 1))] ^= np.uint8(1)
            content = BlockBytes(data, content.checksums)
        self.inbox.put(Piece(ask.number, 0, first, content), len(content.data))

    def end(self) -> None:
        if self.peer.asked:
            number = self.draw(st.sampled_from(sorted(self.peer.asked)))
            del self.peer.asked[number]
            self.inbox.put(Over(number, self.draw(st.sampled_from(["", "it died"]))))

    def abort(self) -> None:
        live = sorted(set(self.submitted) - self.ended)
        if live:
            self.take(self.core.abort([self.draw(st.sampled_from(live))]))

    def step(self) -> None:
        if self.core.has_work:
            self.take(self.core.step())

    def take(self, updates: list[SequenceUpdate]) -> None:
        for update in updates:
            assert update.error is None
            answer = self.answers.setdefault((update.request_id, 0), [])
            answer += zip(update.token_ids, update.logprobs or [], strict=True)
            if update.finish_reason is not None:
                assert update.request_id not in self.ended
                self.ended.add(update.request_id)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_no_token_is_another(
    cores: tuple[EngineCore, EngineCore],
    expected: list[list[tuple[int, Any]]],
    data: st.DataObject,
) -> None:
    play = Play(*cores, data.draw)
    actions = {
        "submit": play.submit,
        "deliver": play.deliver,
        "damage": lambda: play.deliver(damaged=True),
        "end": play.end,
        "abort": play.abort,
        "reset": play.core.reset_prefix_cache,
        "step": play.step,
    }
    often = ["submit", "deliver", "deliver", "step", "step", "end"]
    for _ in range(data.draw(st.integers(1, 30))):
        actions[data.draw(st.sampled_from([*often, *actions]))]()
        play.core.check_integrity()
    for number in list(play.peer.asked):
        play.inbox.put(Over(number))
    while play.core.has_work:
        play.step()
    play.core.check_integrity()
    assert play.ended == set(play.submitted)
    assert play.core.stats().handover.open == 0  # type: ignore[union-attr]
    for name, which in play.submitted.items():
        answer = play.answers.get((name, 0), [])
        assert answer == expected[which][: len(answer)]
        assert len(answer) in (TOKENS, *range(TOKENS))
