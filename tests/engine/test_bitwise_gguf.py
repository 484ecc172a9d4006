"""Matrices in the blocks of a GGUF file give a request the same bits whatever else runs.

Few rows are multiplied by codes as they are read, more of them by weights that are expanded first.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.bitwise import Bits, Requests, Served, growing, prompt
from support.checkpoints import tiny_checkpoint
from support.gguf_models import mixed, write_gguf

from penstock import LLM, SamplingParams

REQUESTS = Requests.product(
    [prompt(seed, length, 256) for seed, length in enumerate((1, 9, 33, 70))],
    SamplingParams(temperature=0.8, seed=3, max_tokens=12, ignore_eos=True, logprobs=4),
)


@pytest.fixture(
    scope="module",
    params=[("llama", True), ("llama", False), ("qwen3_moe", True)],
    ids=lambda form: f"{form[0]}-{'int8' if form[1] else 'alone'}",
)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Served:
    family, activations = request.param
    width = {"moe_intermediate_size": 96} if "moe" in family else {"intermediate_size": 96}
    folder = tiny_checkpoint(family, vocab_size=320, **width)
    path = write_gguf(folder, tmp_path_factory.mktemp("gguf") / "mixed.gguf", mixed)
    options = {"load_format": "auto", "tokenizer": str(folder), "kv_cache_bytes": 1 << 22}
    rest = {"dtype": "bfloat16", "quantize_activations": activations, "max_model_len": 256}
    return Served(Path(path), {**options, **rest, "artifact": False})


@pytest.fixture(scope="module")
def plain(model: Served) -> Iterator[LLM]:
    with model.start(enable_prefix_caching=False) as llm:
        yield llm


@pytest.fixture(scope="module")
def alone(plain: LLM) -> list[Bits]:
    return REQUESTS.alone(plain)


def test_together(plain: LLM, alone: list[Bits]) -> None:
    assert REQUESTS.together(plain) == alone


def test_chunks_prefix_hits_and_threads(model: Served, alone: list[Bits]) -> None:
    with model.start(max_num_batched_tokens=16, max_num_seqs=8, threads=3) as llm:
        assert REQUESTS.together(llm) == alone
        assert REQUESTS.together(llm) == alone
        assert llm.stats().prefix_hits > 0


def test_preemption(model: Served, plain: LLM) -> None:
    requests = growing(6, max_tokens=80)
    # Six sequences grow from one block to four each; ten blocks hold three of them.
    with model.start(kv_cache_bytes=10 * model.kv_groups().page_bytes, max_model_len=200) as llm:
        assert requests.together(llm) == requests.alone(plain)
        assert llm.stats().preemptions > 0
        llm.check_integrity()
