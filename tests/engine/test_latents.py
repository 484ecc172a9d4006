"""Models with attention over latents: what they hold of a token, and what is quantized of them.

That their bits depend on nothing else is in ``test_bitwise_kinds.py``.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
from support.bitwise import Requests, prompt, served
from support.latents import CONFIG
from support.needs import require_native

from penstock import SamplingParams
from penstock.config import EngineConfig
from penstock.engine.loader import plan_engine
from penstock.plan.explain import explain


def test_memory_is_that_of_latents_and_rotated_keys(tmp_path: Path) -> None:
    """And not of keys and values: 48 numbers a token and layer, where 5 heads have 300."""
    require_native()
    folder = served(tmp_path, CONFIG).folder
    for kv_dtype, row in (("bfloat16", 96), ("float32", 192), ("int8", 52)):
        plan = plan_engine(
            EngineConfig(
                model=str(folder), load_format="dummy", backend="cpu", kv_cache_dtype=kv_dtype
            )
        ).plan
        assert plan.kv_groups.page_bytes == 2 * 32 * row


def test_quantization_leaves_the_matrices_of_heads_as_they_are(tmp_path: Path) -> None:
    require_native()
    model = served(tmp_path, CONFIG, quantization="int8", max_model_len=512)
    config = EngineConfig(
        model=str(model.folder),
        load_format="dummy",
        backend="cpu",
        quantization="int8",
        artifact=False,
    )
    told = "matrices of single heads (HeadLinear) are not quantized: bfloat16"
    assert told in explain(plan_engine(config).plan)
    assert told not in explain(
        plan_engine(msgspec.structs.replace(config, quantization="none")).plan
    )
    requests = Requests.product(
        [prompt(seed, length) for seed, length in enumerate((1, 33, 100))],
        SamplingParams(temperature=0, max_tokens=14, ignore_eos=True, logprobs=3),
    )
    with model.start(enable_prefix_caching=False) as llm:
        assert requests.together(llm) == requests.alone(llm)
