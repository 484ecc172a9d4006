"""The measuring functions themselves, on a tiny model and a fake clock of the device."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="triton is not installed")

import torch
from gpu import ceilings, engine
from gpu.replay import chunk_step, decode_step, prefill_step
from gpu.settings import engine_config
from gpu.workload import Size

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 1,
    "vocab_size": 96,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "torch_dtype": "float32",
}
SIZE = Size().smallest()


class FakeTimer:
    """A device on which every call takes a millisecond."""

    def seconds(self, call: Callable[[], object], times: int) -> float:
        for _ in range(times):
            call()
        return 1e-3

    def each(self, calls: Sequence[Callable[[], object]]) -> list[float]:
        for call in calls:
            call()
        return [1e-3] * len(calls)


@pytest.mark.slow
def test_an_engine_is_measured(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    config = engine_config(tmp_path, SIZE, max_num_batched_tokens=12)
    measures = ("decode", "prefill", "host", "chunk", "itl", "ops")
    found = engine.measure(config, measures, (1, 4), FakeTimer(), SIZE, time.time())
    # Four sequences are more than the engine holds: that is told, and the rest is measured.
    assert list(found.problems) == ["decode"]
    assert "no step decoded all 4 requests" in found.problems["decode"]
    assert [step.step for step in found.steps] == [
        "decode, batch 1, context 8",
        "decode, batch 4, context 8",
        "prefill, the last 12 tokens of 12",
    ]
    products = {op.name: op.weight_bytes for op in found.steps[0].ops if op.weight_bytes}
    assert products["linear gate+up"] == 2 * 64 * 96 * 4
    assert found.steps[0].seconds == pytest.approx(14e-3)  # of so many launches
    assert found.settings["max_num_seqs"] == "2"
    assert 0 < found.ready.loaded_s < found.ready.first_token_s
    assert found.host is not None
    assert (found.host.batch, found.host.device_s) == (2, 1e-3)
    assert found.chunk is not None
    assert (found.chunk.chunk, found.chunk.decodes, found.chunk.context) == (4, 1, 8)
    assert found.chunk.padded is None  # there are no graphs here
    assert [place.position for place in found.places] == [4]
    per_token = 2 * 2 * 16 * 4  # keys and values, heads, columns, bytes
    assert found.places[0].kv_bytes == (4 + 1 + 1) * per_token
    assert found.prefill is not None
    # The last layer, here the only one, goes on with the one row whose logits are wanted.
    every_row, one_row = 64 * (64 + 32 + 32), 64 * 64 + 3 * 64 * 96 + 64 * 96
    assert found.prefill.linear_flops == 2 * (every_row * 12 + one_row)


def test_a_decode_step_is_one_token_of_each() -> None:
    step = decode_step(batch=3, context=40, num_blocks=6)
    assert step.num_tokens == step.num_sequences == 3
    assert len(set(step.groups[0].slots.tolist())) == 3
    assert (step.groups[0].slots % 32 == 39 % 32).all()
    assert sorted(step.groups[0].block_ids.tolist()) == list(range(6))
    shared = decode_step(batch=3, context=70, num_blocks=4)  # of nine blocks, four are there
    assert shared.groups[0].block_ids.max() < 4
    assert len(set(shared.groups[0].slots.tolist())) == 3
    with pytest.raises(ValueError, match="2 blocks do not hold 3 sequences"):
        decode_step(batch=3, context=20, num_blocks=2)


def test_a_chunk_step_reads_beside_those_that_decode() -> None:
    step = chunk_step(chunk=34, decodes=2, context=40, num_blocks=6)
    assert (step.num_tokens, step.num_sequences) == (36, 3)
    assert step.query_starts.tolist() == [0, 34, 35, 36]
    assert step.positions.tolist() == [*range(6, 40), 39, 39]
    assert step.logit_rows.tolist() == [33, 34, 35]
    assert len(set(step.groups[0].slots.tolist())) == 36
    assert (step.groups[0].slots % 32 == step.positions % 32).all()
    with pytest.raises(ValueError, match="a chunk of 8 tokens does not fit a context of 7"):
        chunk_step(chunk=8, decodes=1, context=7, num_blocks=2)


def test_a_prefill_step_ends_a_prompt() -> None:
    step = prefill_step(tokens=8, context=40, num_blocks=2)
    np.testing.assert_array_equal(step.positions, np.arange(32, 40))
    np.testing.assert_array_equal(step.logit_rows, [7])
    with pytest.raises(ValueError, match="1 blocks do not hold a sequence of 40"):
        prefill_step(tokens=8, context=40, num_blocks=1)


def test_every_number_is_read() -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    numbers = torch.arange(2 * 64 * 3, dtype=torch.int32, device=device)
    sums = torch.zeros(2, dtype=torch.int32, device=device)
    ceilings.read_all(numbers, sums, 64, 3)
    assert sums.tolist() == numbers.view(2, -1).sum(1).tolist()


def test_what_is_read_is_far_larger_than_the_l2_cache() -> None:
    assert ceilings.span(50 << 20, 80 << 30) == 1 << 30
    assert ceilings.span(256 << 20, 80 << 30) == 2 << 30
    assert ceilings.span(50 << 20, 1 << 30) == 1 << 29
    with pytest.raises(ValueError, match="256 MiB are free on the GPU"):
        ceilings.span(50 << 20, 256 << 20)
