"""Adapters in an engine: as if merged, bitwise alike in any company, in slots that take turns."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support.adapted_engines import CLOSE, FAMILIES, GREEDY, check_as_if_merged, said
from support.adapters import merge, write_adapter
from support.bitwise import prompt
from support.checkpoints import VOCAB, tiny_checkpoint
from support.needs import require_native

from penstock import (
    LLM,
    BeamSearchParams,
    ConfigError,
    LoRARequest,
    RequestError,
    SamplingParams,
)


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("family", FAMILIES)
def test_as_if_merged(family: str, backend: str, tmp_path: Path) -> None:
    if backend == "cpu":
        require_native()
    check_as_if_merged(family, tmp_path, backend, merged_backend=backend)


def test_ranks_and_scales_by_module(tmp_path: Path) -> None:
    """Patterns of ranks and alphas, rank-stabilized scales, and modules that are left out."""
    base = tiny_checkpoint("llama")
    adapter = write_adapter(
        tmp_path / "a",
        base,
        rank=3,
        targets=("q_proj", "o_proj", "up_proj"),
        ranks=lambda module: 18 if module.endswith("layers.1.self_attn.q_proj") else 3,
        rank_pattern={r"layers\.1\.self_attn\.q_proj": 18},
        alpha_pattern={"up_proj": 5},
        use_rslora=True,
    )
    merged = merge(tmp_path / "merged", base, adapter)
    tokens = prompt(4, 40, VOCAB)
    with LLM(str(merged), backend="reference") as llm:
        expected = said(llm, tokens)
    options = {"lora_modules": {"a": adapter}, "max_lora_rank": 32}
    for backend in ("reference", "cpu"):
        with LLM(str(base), backend=backend, **options) as llm:
            adapted = said(llm, tokens, "a")
        assert np.abs(np.subtract(adapted[1], expected[1])).max() < CLOSE, backend


# --- one engine of eight adapters --------------------------------------------------------------

NAMES = [f"a{i}" for i in range(8)]
RANKS = (16, 1, 8, 16, 33, 4, 16, 2)
SHORT = SamplingParams(temperature=0.7, seed=5, max_tokens=5, ignore_eos=True, logprobs=2)


@pytest.fixture(scope="module")
def base() -> Path:
    return tiny_checkpoint("llama", dtype="bfloat16", hidden_size=96)


@pytest.fixture(scope="module")
def adapters(base: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("adapters")
    return {
        name: write_adapter(folder / name, base, seed=i, rank=rank)
        for i, (name, rank) in enumerate(zip(NAMES, RANKS, strict=True))
    }


@pytest.fixture(
    scope="module", params=[{}, {"quantization": "int8"}, {"quantization": "int4"}], ids=str
)
def eight(
    base: Path, adapters: dict[str, Path], request: pytest.FixtureRequest
) -> Iterator[tuple[LLM, dict[str, object]]]:
    require_native()
    options = {"backend": "cpu", "artifact": False, "threads": 2, "max_lora_rank": 40}
    options |= request.param
    with LLM(str(base), lora_modules=adapters, **options) as llm:
        yield llm, options


def bits(llm: LLM, prompts: list[list[int]], loras: list[str | None]) -> list[object]:
    given = [{"prompt_token_ids": tokens} for tokens in prompts]
    outputs = llm.generate(given, SHORT, lora=loras)
    return [(o.outputs[0].token_ids, o.outputs[0].logprobs) for o in outputs]


def test_a_mixed_batch_has_the_bits_of_each_alone(eight: tuple[LLM, dict[str, object]]) -> None:
    llm, _ = eight
    loras = [(None, *NAMES)[i % 9] for i in range(64)]
    prompts = [prompt(i, 3 + i, VOCAB) for i in range(64)]
    together = bits(llm, prompts, loras)
    llm.check_integrity()
    alone = [
        bits(llm, [tokens], [lora])[0] for tokens, lora in zip(prompts[:27], loras, strict=False)
    ]
    assert together[:27] == alone
    assert len({str(each) for each in bits(llm, [prompts[9]] * 9, [None, *NAMES])}) == 9


def test_room_for_adapters_changes_no_bit_of_the_base(
    eight: tuple[LLM, dict[str, object]], base: Path
) -> None:
    llm, options = eight
    prompts = [prompt(i, 3 + 9 * i, VOCAB) for i in range(6)]
    with LLM(str(base), **{k: v for k, v in options.items() if k != "max_lora_rank"}) as plain:
        assert bits(llm, prompts, [None] * 6) == bits(plain, prompts, [None] * 6)


def test_few_slots_and_chunks_change_no_bit(
    eight: tuple[LLM, dict[str, object]], base: Path, adapters: dict[str, Path]
) -> None:
    """Adapters take turns in two slots, and prompts are cut, and what is cached is found."""
    llm, options = eight
    loras = [(None, *NAMES)[i % 9] for i in range(20)]
    prompts = [prompt(i, 5 + 4 * i, VOCAB) for i in range(20)]
    expected = bits(llm, prompts, loras)
    options = options | {"max_loras": 2, "max_num_batched_tokens": 24, "max_num_seqs": 6}
    with LLM(str(base), lora_modules=adapters, **options) as other:
        assert bits(other, prompts, loras) == expected
        other.check_integrity()
        assert bits(other, prompts, loras) == expected
        assert other.stats().prefix_hits > 0


@pytest.mark.parametrize(
    ("dtype", "quantization", "close"),
    [("bfloat16", "none", 0.02), ("float32", "int8", 0.005), ("float32", "int4", 0.005)],
)
def test_an_adapter_changes_the_result_as_its_reference_does(
    base: Path, adapters: dict[str, Path], dtype: str, quantization: str, close: float
) -> None:
    """Means are compared: where sums end in other bits, a code may be rounded to its neighbour.
    Columns of integers are balanced, and adapters, too."""
    tokens = prompt(1, 40, VOCAB)
    options = {"dtype": dtype, "quantization": quantization, "lora_modules": adapters}
    found = []
    for backend in ("reference", "cpu"):
        with LLM(str(base), backend=backend, max_lora_rank=40, **options) as llm:
            found.append([said(llm, tokens, name)[1][:39] for name in ("a0", "a1", "a4")])
    assert np.abs(np.subtract(*found)).mean() < close


def test_prefixes_are_of_one_adapter(base: Path, adapters: dict[str, Path]) -> None:
    tokens = prompt(1, 100, VOCAB)
    options = {"backend": "reference", "lora_modules": {n: adapters[n] for n in ("a0", "a1")}}
    with LLM(str(base), **options) as llm:
        for hits, name in enumerate(("a0", "a1", None, "a0", None)):
            before = llm.stats().prefix_hits
            llm.generate([{"prompt_token_ids": tokens}], SamplingParams(max_tokens=1), lora=name)
            assert (llm.stats().prefix_hits > before) == (hits > 2)


def test_adapters_come_and_go(base: Path, adapters: dict[str, Path]) -> None:
    tokens = prompt(1, 20, VOCAB)
    with LLM(str(base), backend="reference", max_loras=1) as llm:
        assert llm.adapters == ()
        plain = said(llm, tokens)
        with pytest.raises(RequestError, match="no adapter is called 'a0'"):
            said(llm, tokens, "a0")
        llm.load_adapter("a0", adapters["a0"])
        first = said(llm, tokens, "a0")
        assert first != plain
        llm.load_adapter("a0", adapters["a2"])
        second = said(llm, tokens, "a0")
        assert second not in (first, plain)
        asked = LoRARequest("mine", 1, str(adapters["a0"]))
        prompts = [{"prompt_token_ids": tokens}] * 2
        one, two = llm.generate(prompts, GREEDY, lora_request=[asked, None])
        assert (one.outputs[0].token_ids, two.outputs[0].token_ids) == (first[0], plain[0])
        assert llm.adapters == ("a0", "mine")
        beams = BeamSearchParams(beam_width=2, max_tokens=4)
        both = llm.beam_search(prompts, beams, lora=["a0", None])
        assert [each.outputs[0].token_ids for each in both] == [
            llm.beam_search(prompts[:1], beams, lora_request=lora)[0].outputs[0].token_ids
            for lora in ("a0", None)
        ]
        assert both[0].outputs[0].token_ids != both[1].outputs[0].token_ids
        llm.unload_adapter("a0")
        with pytest.raises(RequestError, match="loaded: mine"):
            said(llm, tokens, "a0")
        for wrong, message in (
            (object(), "not <object"),
            (["mine"], "2 prompts, but 1 adapters"),
            (LoRARequest("other", 2), "'other' is not loaded, and its path is ''"),
        ):
            with pytest.raises(RequestError, match=message):
                llm.generate(prompts, lora=wrong)  # type: ignore[arg-type]
        assert said(llm, tokens) == plain
        llm.check_integrity()


def test_siblings_share_their_adapter(base: Path, adapters: dict[str, Path]) -> None:
    params = SamplingParams(n=3, temperature=1.0, seed=1, max_tokens=4, ignore_eos=True)
    tokens = [{"prompt_token_ids": prompt(1, 40, VOCAB)}]
    options = {"backend": "reference", "lora_modules": {n: adapters[n] for n in ("a0", "a1")}}
    answers = []
    for most in (8, 2):
        with LLM(str(base), max_num_seqs=most, max_loras=1, **options) as llm:
            both = llm.generate(tokens * 2, params, lora=["a0", "a1"])
            llm.check_integrity()
        answers.append([[each.token_ids for each in one.outputs] for one in both])
    assert answers[0] == answers[1]
    assert answers[0][0] != answers[0][1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_lora_rank": 8}, "max_lora_rank has no effect"),
        ({"max_loras": 0}, "max_loras must be 1 to"),
        ({"max_loras": 1, "max_lora_rank": 512}, "max_lora_rank must be 1 to 256"),
        ({"max_loras": 1, "tensor_parallel": 2}, "leave tensor_parallel out"),
        ({"max_loras": 1, "pipeline_parallel": 2}, "leave pipeline_parallel out"),
        ({"lora_modules": ("a",)}, "NAME=PATH"),
        ({"lora_modules": ("a=x", "a=y")}, "twice"),
        ({"lora_modules": ("a=x",), "served_model_name": "a"}, "as the model itself is called"),
    ],
)
def test_options_that_cannot_be_had(base: Path, options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LLM(str(base), backend="reference", **options)


def test_no_room(base: Path, adapters: dict[str, Path]) -> None:
    with (
        LLM(str(base), backend="reference") as llm,
        pytest.raises(ConfigError, match="start it with --max-loras"),
    ):
        llm.load_adapter("a", adapters["a0"])


def test_balanced_integers_are_near_the_merged_floats(tmp_path: Path) -> None:
    """An adapter over int8 weights is as near to the merged floats as int8 is to floats: what
    columns are scaled by is taken into account on both sides."""
    base = tiny_checkpoint("llama")
    adapter = write_adapter(tmp_path / "a", base, seed=1)
    merged = merge(tmp_path / "merged", base, adapter)
    tokens = prompt(3, 60, VOCAB)
    with LLM(str(merged), backend="reference") as llm:
        expected = said(llm, tokens)[1][:59]
    options = {"backend": "reference", "quantization": "int8"}
    with LLM(str(merged), **options) as llm:
        rounded = np.abs(np.subtract(said(llm, tokens)[1][:59], expected)).mean()
    with LLM(str(base), lora_modules={"a": adapter}, **options) as llm:
        adapted = np.abs(np.subtract(said(llm, tokens, "a")[1][:59], expected)).mean()
    assert adapted < 2 * rounded
