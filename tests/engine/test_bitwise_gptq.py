"""Experts that a checkpoint has quantized give a request the same bits whatever else runs.

Each of a token's experts may want its columns in another order: what is gathered for one row must
not depend on the rows beside it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support.bitwise import Bits, Requests, Served, growing, prompt
from support.gptq_checkpoints import gptq_checkpoint

from penstock import LLM, SamplingParams

FORMS: list[dict[str, Any]] = [
    {"family": "qwen3_moe", "bits": 4, "config": {"moe_intermediate_size": 40}},
    {"family": "mixtral", "bits": 8, "sym": False, "shuffled": True, "desc_act": True},
]
REQUESTS = Requests.product(
    [prompt(seed, length, 256) for seed, length in enumerate((1, 9, 33, 70))],
    SamplingParams(temperature=0.8, seed=3, max_tokens=12, ignore_eos=True, logprobs=4),
)


@pytest.fixture(scope="module", params=FORMS, ids=lambda form: str(form["family"]))
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Served:
    folder, _ = gptq_checkpoint(tmp_path_factory.mktemp("gptq"), **request.param)
    options = {"load_format": "auto", "dtype": "float32", "kv_cache_bytes": 1 << 22}
    return Served(folder, {**options, "artifact": False})


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
