"""Heads in the published forms, in an engine: outputs are those of plain decoding, bit by bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.head_checkpoints import (
    EAGLE1,
    EAGLE3,
    MEDUSA,
    eagle1_arrays,
    eagle3_arrays,
    medusa_arrays,
    target_folder,
    write_heads,
)
from support.needs import require_native

from penstock import EngineConfig
from penstock.engine.core import EngineCore
from penstock.interface.logprobs import TokenLogprobs
from penstock.interface.messages import EngineRequest, SequenceUpdate
from penstock.sampling.params import SamplingParams
from penstock.speculative_config import speculative_config

KINDS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "medusa": lambda path: {
        "method": "medusa",
        "model": str(write_heads(path / "medusa", MEDUSA, medusa_arrays())),
    },
    "eagle1": lambda path: {
        "method": "eagle",
        "model": str(write_heads(path / "eagle1", EAGLE1, eagle1_arrays())),
        "width": 2,
    },
    "eagle3": lambda path: {
        "method": "eagle",
        "model": str(write_heads(path / "eagle3", EAGLE3, eagle3_arrays())),
        "width": 3,
        "depth": 3,
    },
    "eagle3 chain": lambda path: {
        "method": "eagle",
        "model": str(write_heads(path / "eagle3", EAGLE3, eagle3_arrays())),
        "width": 1,
        "num_tokens": 4,
    },
}

HiddenRows = dict[tuple[str, int], tuple[list[int], list[TokenLogprobs]]]


def requests() -> list[EngineRequest]:
    kinds = [
        SamplingParams(temperature=0, max_tokens=70, ignore_eos=True, logprobs=2),
        SamplingParams(temperature=1.2, seed=1, max_tokens=50, n=2, top_p=0.9),
        SamplingParams(temperature=0, max_tokens=60, ignore_eos=True, repetition_penalty=1.2),
        SamplingParams(temperature=0.7, seed=4, max_tokens=40, top_k=30, frequency_penalty=0.5),
        SamplingParams(temperature=0, max_tokens=1),
    ]
    return [
        EngineRequest(request_id=f"{i}", prompt_token_ids=[3 + i, 9] * (3 + 9 * i), params=params)
        for i, params in enumerate(kinds)
    ]


def start(**options: Any) -> EngineCore:
    config = EngineConfig(
        model=str(target_folder()),
        backend="cpu",
        threads=1,
        dtype="float32",
        max_model_len=128,
        max_num_seqs=4,
        max_num_batched_tokens=48,
        artifact=False,
        **options,
    )
    require_native()
    return EngineCore.start(config)


def play(core: EngineCore) -> HiddenRows:
    reported: HiddenRows = {}
    for request in requests():
        core.add_request(request)
    updates: list[SequenceUpdate] = []
    while core.has_work:
        updates += core.step()
        core.check_integrity()
    for update in updates:
        assert update.error is None
        tokens, logprobs = reported.setdefault((update.request_id, update.index), ([], []))
        tokens += update.token_ids
        logprobs += update.logprobs or []
    return reported


@pytest.mark.thinned(4)
@pytest.mark.parametrize("kind", KINDS)
def test_the_same_as_without(kind: str, tmp_path: Path) -> None:
    plain = start()
    expected = play(plain)
    plain.close()
    # Enough for each request, and not for all of them at once: some are preempted.
    block = 7 * 32 * 2 * 2 * 16 * 4
    options = KINDS[kind](tmp_path)
    own = 0 if kind == "medusa" else block // 7
    speculative = speculative_config({**options, "adaptive": False})
    core = start(speculative=speculative, kv_cache_bytes=7 * (block + own))
    assert play(core) == expected
    stats = core.stats()
    assert stats.preemptions > 0
    assert stats.drafts is not None
    assert stats.drafts.draft_tokens > 100
    assert play(core) == expected, "with what is cached by now"
    core.close()
