"""A row never depends on its neighbours: the same request gives the same bits, whatever else runs.

Log-probabilities are compared with ``==``: a float32 logit that differs in its last bit fails.
"""

from __future__ import annotations

import numpy as np
import pytest
from support.bitwise import Bits, Requests, Served, growing, prompt, run, served

from penstock import LLM, SamplingParams
from penstock.cache.geometry import KvDType

VOCABULARY = 500
MODELS: list[tuple[str, KvDType, int]] = [
    ("float32", "float32", 40),
    ("bfloat16", "bfloat16", 40),
    ("float16", "float16", 40),
    ("float32", "int8", 40),
    ("bfloat16", "int8", 40),
    ("bfloat16", "int8", 64),
    ("float32", "int4", 40),
    ("bfloat16", "int4", 64),
    ("bfloat16", "k8v4", 40),
    ("bfloat16", "fp8", 40),
]
"""Types of weights and cache, and the size of a head."""
INT8_MODELS = [model for model in MODELS if model[1] == "int8"]


def name(param: object) -> str | None:
    return " ".join(map(str, param)) if isinstance(param, tuple) else None


@pytest.fixture(scope="module", params=MODELS, ids=name)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Served:
    """A folder with a configuration only: widths, and head sizes but for the last, that fill no
    tile evenly."""
    dtype, kv_dtype, head_dim = request.param
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": VOCABULARY,
        "hidden_size": 200,
        "intermediate_size": 344,
        "num_hidden_layers": 3,
        "num_attention_heads": 6,
        "num_key_value_heads": 3,
        "head_dim": head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "torch_dtype": dtype,
        "eos_token_id": 0,
    }
    return served(
        tmp_path_factory.mktemp("model"),
        config,
        kv_cache_dtype=kv_dtype,
        max_num_batched_tokens=256,
        max_model_len=1024,
    )


PROMPTS = [
    prompt(seed, length, VOCABULARY) for seed, length in enumerate((1, 31, 32, 33, 100, 300, 611))
]
PARAMS = [
    SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, logprobs=5),
    SamplingParams(temperature=0.9, top_p=0.9, seed=7, max_tokens=24, ignore_eos=True, logprobs=5),
]
REQUESTS = Requests.product(PROMPTS, *PARAMS)


@pytest.mark.thinned(23)
@pytest.mark.parametrize("last", range(1, 7))
def test_among_32_strangers(plain: LLM, expected: list[Bits], last: int) -> None:
    strangers = [prompt(1000 + i, 1 + 13 * i, VOCABULARY) for i in range(32)]
    busy = [SamplingParams(seed=i, max_tokens=8 + i, ignore_eos=True) for i in range(32)]
    where = (7 * last) % 33
    prompts = [*strangers[:where], REQUESTS.prompts[-last], *strangers[where:]]
    params = [*busy[:where], REQUESTS.params[-last], *busy[where:]]
    assert run(plain, prompts, params)[where] == expected[-last]


@pytest.mark.thinned(5)
@pytest.mark.parametrize("budget", [16, 4096])
def test_token_budget(model: Served, expected: list[Bits], budget: int) -> None:
    with model.start(max_num_batched_tokens=budget, max_num_seqs=16) as llm:
        assert REQUESTS.together(llm) == expected


@pytest.mark.thinned(3)
def test_prefix_hits(model: Served, expected: list[Bits]) -> None:
    with model.start() as llm:
        assert REQUESTS.together(llm) == expected
        before = llm.stats().prefix_hits
        assert REQUESTS.together(llm) == expected
        assert llm.stats().prefix_hits - before >= REQUESTS.cached_tokens


@pytest.mark.thinned(5)
def test_preemption(model: Served, plain: LLM) -> None:
    requests = growing(8, max_tokens=110)
    # Eight sequences grow from one block to five each; sixteen blocks hold three of them.
    with model.start(kv_cache_bytes=16 * model.kv_groups().page_bytes, max_model_len=200) as llm:
        assert requests.together(llm) == requests.alone(plain)
        assert llm.stats().preemptions > 0
        llm.check_integrity()


@pytest.mark.thinned(5)
@pytest.mark.parametrize("threads", [2, 3])
def test_threads(model: Served, expected: list[Bits], threads: int) -> None:
    with model.start(threads=threads) as llm:
        assert REQUESTS.together(llm) == expected


def test_sequences_of_one_prompt_equal_themselves_in_company(plain: LLM) -> None:
    params = SamplingParams(n=3, temperature=1.0, seed=3, max_tokens=12, ignore_eos=True)
    (lone,) = run(plain, [PROMPTS[4]], params)
    assert len({lone_tokens for lone_tokens, _ in lone}) == 3
    assert run(plain, PROMPTS, params)[4] == lone


@pytest.mark.parametrize("model", INT8_MODELS, indirect=True, ids=name)
def test_an_int8_cache_changes_the_result(model: Served, plain: LLM) -> None:
    """Or the tests above would show nothing of it."""
    with model.start(kv_cache_dtype="float32") as exact:
        (a,), (b,) = (run(llm, [PROMPTS[5]], PARAMS[0])[0] for llm in (exact, plain))
    assert a[1] != b[1]


@pytest.mark.thinned(3)
def test_prompts_are_reported_in_as_many_steps_as_logits_have_room_for(model: Served) -> None:
    """A step of 600 tokens has room for the logits of 258, a step of 64 for those of all."""
    tokens = np.random.default_rng(5).integers(1, VOCABULARY, 700).tolist()
    params = SamplingParams(temperature=0.0, max_tokens=3, prompt_logprobs=2)
    reported = []
    for budget in (600, 64):
        with model.start(max_num_seqs=2, max_num_batched_tokens=budget) as llm:
            (output,) = llm.generate([{"prompt_token_ids": tokens}], params)
        assert output.prompt_logprobs is not None
        assert len(output.prompt_logprobs) == len(tokens)
        reported.append((output.prompt_logprobs, output.outputs[0].token_ids))
    assert reported[0] == reported[1]
