"""Each kind of attention and of layer gives a request the same bits, whatever else runs.

``test_bitwise.py`` does the same with a usual decoder in all types.
"""

from __future__ import annotations

from typing import Any, Final

import pytest
from support.bitwise import Bits, Requests, Served, growing, prompt, served
from support.families import edited
from support.latents import CONFIG as LATENTS

from penstock import LLM, SamplingParams

SIZES: Final[dict[str, Any]] = {
    "vocab_size": 300,
    "hidden_size": 120,
    "intermediate_size": 104,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "max_position_embeddings": 2048,
    "eos_token_id": 0,
    "bos_token_id": 1,
}
"""Sizes that fill no tile evenly; heads have 20 components."""


def small(family: str, **changes: Any) -> dict[str, Any]:
    """A family's configuration as it is published, of small sizes."""
    return edited(family, **{**SIZES, **changes})


GEMMA4: Final = {
    "layer_types": ["sliding_attention", "full_attention"] * 3,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "head_dim": 24,
    "global_head_dim": 40,
    "hidden_size_per_layer_input": 12,
    "vocab_size_per_layer_input": 300,
    "sliding_window": 40,
}
KINDS: Final[dict[str, tuple[dict[str, Any], dict[str, Any]]]] = {
    "latents float32": (LATENTS, {"dtype": "float32"}),
    "latents bfloat16": (LATENTS, {}),
    "latents float16": (LATENTS, {"dtype": "float16"}),
    "latents int8": (LATENTS, {"kv_cache_dtype": "int8"}),
    "latents reference": (LATENTS, {"backend": "reference"}),
    "shared keys and values": (
        small("gemma4_text", num_kv_shared_layers=3, num_key_value_heads=2, **GEMMA4),
        {},
    ),
    "keys as values": (
        small(
            "gemma4_text",
            attention_k_eq_v=True,
            num_kv_shared_layers=2,
            num_key_value_heads=2,
            num_global_key_value_heads=1,
            **GEMMA4,
        ),
        {"kv_cache_dtype": "int8"},
    ),
    "slopes of MPT": (
        small("mpt", intermediate_size=..., d_model=120, n_heads=6, n_layers=3, max_seq_len=2048),
        {},
    ),
    "slopes of Falcon": (small("falcon", intermediate_size=..., alibi=True), {}),
    "slopes of BLOOM": (
        small("bloom", intermediate_size=..., n_embed=120, n_head=6, n_layer=3),
        {"kv_cache_dtype": "int8"},
    ),
    "parallel Falcon": (
        small("falcon", intermediate_size=..., new_decoder_architecture=True, num_kv_heads=2),
        {},
    ),
    "parallel GPT-NeoX": (small("gpt_neox", rotary_pct=0.4), {"dtype": "bfloat16"}),
    "parallel Cohere": (small("cohere", num_key_value_heads=2), {"dtype": "float32"}),
    "parallel Phi": (small("phi"), {"kv_cache_dtype": "int8"}),
}
"""Configurations and options."""
QUICK: Final = ("latents bfloat16", "shared keys and values", "slopes of MPT", "parallel Phi")


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in KINDS],
)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Served:
    config, options = KINDS[request.param]
    bounds = {"max_num_batched_tokens": 256, "max_model_len": 512}
    return served(tmp_path_factory.mktemp("model"), config, **bounds, **options)


REQUESTS: Final = Requests.product(
    [prompt(seed, length) for seed, length in enumerate((1, 31, 33, 100, 290))],
    SamplingParams(temperature=0, max_tokens=10, ignore_eos=True, logprobs=3),
    SamplingParams(temperature=0.9, top_p=0.9, seed=7, max_tokens=10, ignore_eos=True, logprobs=3),
)


@pytest.mark.parametrize("budget", [256, pytest.param(4096, marks=pytest.mark.slow)])
def test_in_a_batch(model: Served, expected: list[Bits], budget: int) -> None:
    with model.start(max_num_batched_tokens=budget, max_num_seqs=16) as llm:
        assert REQUESTS.together(llm) == expected


def test_in_small_steps_behind_cached_prefixes_on_threads(
    model: Served, expected: list[Bits]
) -> None:
    with model.start(max_num_batched_tokens=16, max_num_seqs=16, threads=2) as llm:
        assert REQUESTS.together(llm) == expected
        before = llm.stats().prefix_hits
        assert REQUESTS.together(llm) == expected
        assert llm.stats().prefix_hits - before >= REQUESTS.cached_tokens
        llm.check_integrity()


def test_preemption(model: Served, plain: LLM) -> None:
    requests, groups = growing(6, max_tokens=80), model.kv_groups()
    # Six sequences grow from one block to four each, in each group that forgets none; ten blocks
    # hold three of them.
    blocks = 10 * len(groups)
    with model.start(kv_cache_bytes=blocks * groups.page_bytes, max_model_len=200) as llm:
        assert requests.together(llm) == requests.alone(plain)
        assert llm.stats().preemptions > 0
        llm.check_integrity()


def test_drafts(model: Served, plain: LLM) -> None:
    # Three tokens that are likely: what was said is soon said again, and looked up.
    likely = {"logit_bias": dict.fromkeys((5, 6, 7), 30.0)}
    requests = Requests.product(
        [prompt(60, 7) * 3, prompt(61, 40)],
        SamplingParams(temperature=0, max_tokens=40, ignore_eos=True, logprobs=2, **likely),
        SamplingParams(temperature=0.7, seed=3, max_tokens=40, ignore_eos=True, **likely),
    )
    with model.start(speculative="ngram:num_tokens=4,adaptive=false") as llm:
        assert requests.together(llm) == requests.alone(plain)
        drafts = llm.stats().drafts
        assert drafts is not None
        assert drafts.draft_tokens >= 8
