"""On the reference backend too, a request gives the same bits whatever else runs.

The models are those whose products are not plain ones: rows that meet at an expert, and columns
that are gathered in the order of their groups.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.bitwise import Bits, Requests, Served, prompt
from support.checkpoints import tiny_checkpoint
from support.gptq_checkpoints import gptq_checkpoint

from penstock import LLM, SamplingParams

REQUESTS = Requests.product(
    [prompt(seed, length, 256) for seed, length in enumerate((1, 2, 9, 17, 40, 64))],
    SamplingParams(temperature=0.8, seed=3, max_tokens=8, ignore_eos=True, logprobs=4),
)


def stored(folder: Path, **options: Any) -> Served:
    bounds = {"dtype": "float32", "kv_cache_bytes": 1 << 22}
    return Served(folder, {"backend": "reference", "load_format": "auto", **bounds, **options})


@pytest.fixture(scope="module", params=["experts", "shuffled columns", "both"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Served:
    if request.param == "experts":
        return stored(tiny_checkpoint("qwen3_moe"))
    form: dict[str, Any] = {"bits": 4, "group": 32, "sym": False, "shuffled": True}
    if request.param == "both":
        form |= {"family": "mixtral"}
    return stored(gptq_checkpoint(tmp_path_factory.mktemp("gptq"), desc_act=True, **form)[0])


@pytest.fixture(scope="module")
def plain(model: Served) -> Iterator[LLM]:
    with model.start(enable_prefix_caching=False) as llm:
        yield llm


@pytest.fixture(scope="module")
def alone(plain: LLM) -> list[Bits]:
    return REQUESTS.alone(plain)


def test_together(plain: LLM, alone: list[Bits]) -> None:
    assert REQUESTS.together(plain) == alone


def test_in_chunks(model: Served, alone: list[Bits]) -> None:
    with model.start(max_num_batched_tokens=16, max_num_seqs=4) as llm:
        assert REQUESTS.together(llm) == alone
        assert REQUESTS.together(llm) == alone
        assert llm.stats().prefix_hits > 0


@pytest.mark.parametrize("quantize_activations", [True, False])
def test_shuffled_columns_with_both_kinds_of_activations(
    tmp_path: Path, quantize_activations: bool
) -> None:
    form: dict[str, Any] = {"bits": 8, "group": 32, "sym": False, "shuffled": True}
    model = stored(gptq_checkpoint(tmp_path, desc_act=True, **form)[0])
    with model.start(quantize_activations=quantize_activations, enable_prefix_caching=False) as llm:
        assert REQUESTS.together(llm) == REQUESTS.alone(llm)
