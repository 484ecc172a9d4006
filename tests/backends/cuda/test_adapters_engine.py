"""Adapters in an engine on the cuda backend: as if merged, in any company, come and gone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.adapted_engines import FAMILIES, check_as_if_merged
from support.adapters import write_adapter
from support.bitwise import prompt
from support.checkpoints import VOCAB, tiny_checkpoint

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="triton is not installed")

from penstock import LLM, ConfigError, RequestError, SamplingParams, WeightError

SMALL: dict[str, Any] = {
    "backend": "cuda",
    "max_num_seqs": 4,
    "max_num_batched_tokens": 32,
    "max_model_len": 64,
}
SHORT = SamplingParams(temperature=0.7, seed=5, max_tokens=2, ignore_eos=True, logprobs=2)
RANKS = {"a0": 16, "a1": 1, "a2": 33}


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_as_if_merged(family: str, tmp_path: Path) -> None:
    check_as_if_merged(family, tmp_path, merged_backend="reference", length=12, **SMALL)


@pytest.fixture(scope="module")
def base() -> Path:
    return tiny_checkpoint("llama", dtype="bfloat16", hidden_size=96)


@pytest.fixture(scope="module")
def adapters(base: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("adapters")
    return {
        name: write_adapter(folder / name, base, seed=i, rank=rank)
        for i, (name, rank) in enumerate(RANKS.items())
    }


def bits(llm: LLM, prompts: list[list[int]], loras: list[str | None]) -> list[object]:
    given = [{"prompt_token_ids": tokens} for tokens in prompts]
    outputs = llm.generate(given, SHORT, lora=loras)
    return [(o.outputs[0].token_ids, o.outputs[0].logprobs) for o in outputs]


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"quantization": "int8"}, {"quantization": "int4"}])
def test_a_mixed_batch_has_the_bits_of_each_alone(
    options: dict[str, Any], base: Path, adapters: dict[str, Path]
) -> None:
    """So it is over floats and integers, and where adapters take turns in fewer slots."""
    loras = [None, "a0", "a2"]
    prompts = [prompt(i, 3 + 3 * i, VOCAB) for i in range(len(loras))]
    options = {**SMALL, **options, "lora_modules": adapters, "max_lora_rank": 40}
    with LLM(str(base), **options) as llm:
        together = bits(llm, prompts, loras)
        alone = [bits(llm, [prompts[i]], [loras[i]])[0] for i in (0, 2)]
        assert together[::2] == alone
        assert len({str(each) for each in bits(llm, [prompts[1]] * 3, loras)}) == 3
    with LLM(str(base), max_loras=1, **options) as llm:
        assert bits(llm, prompts, loras) == together
        llm.check_integrity()


@pytest.mark.slow
def test_adapters_come_and_go(base: Path, adapters: dict[str, Path]) -> None:
    tokens = [prompt(1, 9, VOCAB)]
    with LLM(str(base), max_loras=1, **SMALL) as llm:
        plain = bits(llm, tokens, [None])
        llm.load_adapter("mine", adapters["a0"])
        first = bits(llm, tokens, ["mine"])
        llm.load_adapter("mine", adapters["a1"])
        second = bits(llm, tokens, ["mine"])
        assert len({str(each) for each in (plain, first, second)}) == 3
        llm.unload_adapter("mine")
        with pytest.raises(RequestError, match="no adapter is called 'mine'"):
            bits(llm, tokens, ["mine"])
        assert bits(llm, tokens, [None]) == plain
        with pytest.raises(WeightError, match="has rank 33, and there is room for 16"):
            llm.load_adapter("wide", adapters["a2"])


def test_ranks_of_processes_are_refused_by_name(base: Path) -> None:
    with pytest.raises(ConfigError, match="not served by several processes yet; leave tensor_para"):
        LLM(str(base), max_loras=1, tensor_parallel=2, **SMALL)
