"""Matrices as a checkpoint has them quantized give a request the same bits whatever else runs.

Few rows are multiplied by codes as they are read, more of them by weights that are expanded first.
Rows meet at an expert, each of which may want its columns in another order: what is gathered for
one row must not depend on the rows beside it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from support.bitwise import Bits, Requests, Served, growing, prompt
from support.checkpoints import tiny_checkpoint
from support.gguf_models import mixed, write_gguf
from support.gptq_checkpoints import gptq_checkpoint
from support.packed_bnb import four
from support.packed_floats import fp8, nvfp4
from support.quantized_checkpoints import Pack, quantized_checkpoint

from penstock import LLM, SamplingParams

REQUESTS: Final = Requests.product(
    [prompt(seed, length, 256) for seed, length in enumerate((1, 2, 9, 33, 40, 70))],
    SamplingParams(temperature=0.8, seed=3, max_tokens=12, ignore_eos=True, logprobs=4),
)
EXACT: Final = ("lm_head", ".gate.")


def stored(checkpoint: Path, **options: Any) -> Served:
    """``options`` are those of an engine that differ from the usual."""
    usual = {"load_format": "auto", "kv_cache_bytes": 1 << 22, "artifact": False}
    return Served(checkpoint, {**usual, "dtype": "float32", **options})


def in_blocks(folder: Path, family: str, activations: bool = True) -> Served:
    width = {"moe_intermediate_size": 96} if "moe" in family else {"intermediate_size": 96}
    plain = tiny_checkpoint(family, vocab_size=320, **width)
    path = write_gguf(plain, folder / "mixed.gguf", mixed)
    options = {"dtype": "bfloat16", "quantize_activations": activations, "max_model_len": 256}
    return stored(path, tokenizer=str(plain), **options)


def float_codes(folder: Path, family: str, config: dict[str, Any], pack: Pack) -> Served:
    made, _ = quantized_checkpoint(folder, config, pack, family=family, hidden_size=128)
    return stored(made, dtype="bfloat16", max_model_len=256)


def integers(folder: Path, form: dict[str, Any], **options: Any) -> Served:
    return stored(gptq_checkpoint(folder, **form)[0], **options)


TILES: Final = {"quant_method": "fp8", "weight_block_size": [32, 64]}
NF4: Final = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
NVFP4: Final = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]}
SHUFFLED: Final = {"sym": False, "shuffled": True, "desc_act": True}
GROUPS: Final = {"bits": 4, "group": 32, **SHUFFLED}

MODELS: Final[dict[str, Callable[[Path], Served]]] = {
    "GGUF": lambda at: in_blocks(at, "llama"),
    "GGUF, activations as they are": lambda at: in_blocks(at, "llama", activations=False),
    "GGUF, experts": lambda at: in_blocks(at, "qwen3_moe"),
    "FP8, experts": lambda at: float_codes(
        at, "mixtral", TILES, fp8((32, 64), "weight_scale_inv", EXACT)
    ),
    "NF4": lambda at: float_codes(at, "llama", NF4, four("nf4", skipped=EXACT)),
    "NVFP4": lambda at: float_codes(
        at, "llama", NVFP4, nvfp4(16, "weight_scale_2", False, "weight")
    ),
    "GPTQ, experts": lambda at: integers(
        at, {"family": "qwen3_moe", "bits": 4, "config": {"moe_intermediate_size": 40}}
    ),
    "GPTQ, experts, columns in any order": lambda at: integers(
        at, {"family": "mixtral", "bits": 8, **SHUFFLED}
    ),
    "reference, experts": lambda at: stored(tiny_checkpoint("qwen3_moe"), backend="reference"),
    "reference, columns in any order": lambda at: integers(at, GROUPS, backend="reference"),
    "reference, experts, columns in any order": lambda at: integers(
        at, {"family": "mixtral", **GROUPS}, backend="reference"
    ),
}
SLOW: Final = ("NF4", "NVFP4")


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in MODELS],
)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Served:
    return MODELS[request.param](tmp_path_factory.mktemp("stored"))


def test_together(plain: LLM, expected: list[Bits]) -> None:
    assert REQUESTS.together(plain) == expected


def test_chunks_prefix_hits_and_threads(model: Served, expected: list[Bits]) -> None:
    with model.start(max_num_batched_tokens=16, max_num_seqs=8, threads=3) as llm:
        assert REQUESTS.together(llm) == expected
        assert REQUESTS.together(llm) == expected
        assert llm.stats().prefix_hits > 0


@pytest.mark.thinned(6)
def test_preemption(model: Served, plain: LLM) -> None:
    requests = growing(6, max_tokens=80)
    # Six sequences grow from one block to four each; ten blocks hold three of them.
    with model.start(kv_cache_bytes=10 * model.kv_groups().page_bytes, max_model_len=200) as llm:
        assert requests.together(llm) == requests.alone(plain)
        assert llm.stats().preemptions > 0
        llm.check_integrity()


@pytest.mark.parametrize("quantize_activations", [True, False])
def test_columns_in_any_order_with_both_kinds_of_activations(
    tmp_path: Path, quantize_activations: bool
) -> None:
    form = {"bits": 8, "group": 32, **SHUFFLED}
    model = integers(tmp_path, form, backend="reference", quantize_activations=quantize_activations)
    with model.start(enable_prefix_caching=False) as llm:
        assert REQUESTS.together(llm) == REQUESTS.alone(llm)
