"""Engine options of Python's callers: vLLM's names, neutral values, and refusals with a hint."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from penstock.config import EngineConfig
from penstock.engine_options import engine_config
from penstock.errors import ConfigError


@pytest.mark.parametrize(
    ("given", "dtype"),
    [
        ("half", "float16"),
        ("float", "float32"),
        ("bfloat16", "bfloat16"),
        (torch.float16, "float16"),
        (torch.bfloat16, "bfloat16"),
        (None, "auto"),
    ],
)
def test_types_of_weights(given: object, dtype: str) -> None:
    assert engine_config("", {"dtype": given}).dtype == dtype


def test_none_is_the_default() -> None:
    names = (*EngineConfig.__struct_fields__, "tensor_parallel_size", "hf_token", "swap_space")
    options = dict.fromkeys(name for name in names if name != "model")
    assert engine_config("", options) == EngineConfig()


def test_values_are_taken_as_pythons() -> None:
    config = engine_config(
        "", {"max_model_len": np.int64(5), "tokenizer": Path("/t"), "ignore_config_field": ["a"]}
    )
    assert (config.max_model_len, config.tokenizer) == (5, "/t")
    assert type(config.max_model_len) is int
    assert config.ignore_config_field == ("a",)


NEUTRAL: dict[str, Any] = {
    "tensor_parallel_size": 1,
    "pipeline_parallel_size": 1,
    "trust_remote_code": False,
    "enforce_eager": True,
    "gpu_memory_utilization": 0.9,
    "swap_space": 4,
    "cpu_offload_gb": 0,
    "tokenizer_mode": "auto",
    "disable_log_stats": True,
    "enable_chunked_prefill": True,
    "quantization": None,
    "limit_mm_per_prompt": {},
}


def test_what_asks_for_nothing_is_accepted(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        assert engine_config("", NEUTRAL) == EngineConfig()
    assert caplog.text == ""


def test_no_model_is_the_demo_model() -> None:
    assert engine_config(None, {}) == EngineConfig()


def test_what_changes_no_output_is_named(caplog: pytest.LogCaptureFixture) -> None:
    engine_config("", {"gpu_memory_utilization": 0.5, "swap_space": 16.0})
    assert "gpu_memory_utilization=0.5 has no effect: kv_cache_bytes sets" in caplog.text
    assert "swap_space=16.0 has no effect" in caplog.text


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tensor_parallel_size": 2}, "tensor_parallel_size=2 cannot be honoured: it is called"),
        ({"tensor_parallel_size": True}, "cannot be honoured"),
        ({"trust_remote_code": True}, "own code is never run"),
        ({"speculative_config": {"method": "ngram"}}, "it is called speculative"),
        ({"kv_cache_memory_bytes": 5}, "it is called kv_cache_bytes"),
        ({"gpu_memory_utilization": "much"}, "must be of type float"),
        ({"gpu_memory_utilization": True}, "must be of type float"),
        ({"enforce_eager": 1}, "must be of type bool"),
        ({"max_modellen": 5}, "did you mean 'max_model_len'"),
        ({"model": 5}, "model must be text, not 5"),
        ({"xyzzy": None}, "there is no engine option 'xyzzy'$"),
        ({"dtype": "int3"}, "dtype must be one of auto, float32, bfloat16, float16, not 'int3'"),
        ({"dtype": 16}, "dtype must be one of"),
        ({"max_model_len": "many"}, "max_model_len must be an integer, not 'many'"),
        ({"max_model_len": 1.5}, "max_model_len must be an integer"),
        ({"threads": [1]}, r"threads must be an integer or text, not \(1,\)"),
        ({"enable_prefix_caching": 1}, "enable_prefix_caching must be true or false"),
        ({"quantization": ["int8"]}, "quantization must be one of"),
        ({"speculative": 5}, "speculative must be text"),
    ],
)
def test_what_cannot_be_honoured(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        engine_config("", options)
