"""Matrices of small floats, as a checkpoint has them, give a request the same bits whatever else
runs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.bitwise import Bits, Requests, Served, growing, prompt
from support.packed_bnb import four
from support.packed_floats import fp8, nvfp4
from support.quantized_checkpoints import quantized_checkpoint

from penstock import LLM, SamplingParams

REQUESTS = Requests.product(
    [prompt(seed, length, 256) for seed, length in enumerate((1, 9, 33, 70))],
    SamplingParams(temperature=0.8, seed=3, max_tokens=12, ignore_eos=True, logprobs=4),
)
SKIPPED = ("lm_head", ".gate.")
TILES = {"quant_method": "fp8", "weight_block_size": [32, 64]}
NF4 = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
NVFP4 = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]}
MODELS = {
    "fp8": ("mixtral", TILES, fp8((32, 64), "weight_scale_inv", SKIPPED)),
    "nf4": ("llama", NF4, four("nf4", skipped=SKIPPED)),
    "nvfp4": ("llama", NVFP4, nvfp4(16, "weight_scale_2", False, "weight")),
}


@pytest.fixture(
    scope="module",
    params=[
        "fp8",
        pytest.param("nf4", marks=pytest.mark.slow),
        pytest.param("nvfp4", marks=pytest.mark.slow),
    ],
)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Served:
    family, config, pack = MODELS[request.param]
    folder, _ = quantized_checkpoint(
        tmp_path_factory.mktemp("codes"), config, pack, family=family, hidden_size=128
    )
    options = {"load_format": "auto", "kv_cache_bytes": 1 << 22, "artifact": False}
    return Served(folder, {**options, "dtype": "bfloat16", "max_model_len": 256})


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


@pytest.mark.slow
def test_preemption(model: Served, plain: LLM) -> None:
    requests = growing(6, max_tokens=80)
    with model.start(kv_cache_bytes=10 * model.kv_groups().page_bytes, max_model_len=200) as llm:
        assert requests.together(llm) == requests.alone(plain)
        assert llm.stats().preemptions > 0
        llm.check_integrity()
