"""Rotary tables against transformers' own functions, for every kind and the far end of contexts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from penstock.models.reader import ConfigReader
from penstock.models.rope import inverse_frequencies, rope_tables
from penstock.models.rope_config import LLAMA_FIELDS, RopeFields, extended_positions, read_rope
from penstock.models.spec import RopeSpec

LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
YARN = {"factor": 4.0, "original_max_position_embeddings": 32768}
KINDS: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 3.0},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "llama3": {"rope_type": "llama3", **LLAMA3},
    "llama3-32": {"rope_type": "llama3", **LLAMA3, "factor": 32.0},
    "yarn": {"rope_type": "yarn", **YARN},
    "yarn-factor-from-lengths": {"rope_type": "yarn", **YARN, "factor": None},
    "yarn-attention-factor": {"rope_type": "yarn", **YARN, "attention_factor": 0.75},
    "yarn-mscale": {"rope_type": "yarn", **YARN, "mscale": 0.707, "mscale_all_dim": 1.0},
    "yarn-one-mscale": {"rope_type": "yarn", **YARN, "mscale": 0.707},
    "yarn-betas": {"rope_type": "yarn", **YARN, "beta_fast": 24, "beta_slow": 3},
    "yarn-not-truncated": {"rope_type": "yarn", **YARN, "truncate": False},
    "yarn-zero-width-ramp": {"rope_type": "yarn", **YARN, "beta_fast": 1e9, "beta_slow": 1e8},
    "yarn-shrinking": {"rope_type": "yarn", **YARN, "factor": 0.5},
    "proportional": {"rope_type": "proportional", "partial_rotary_factor": 0.25},
    "proportional-factor": {
        "rope_type": "proportional",
        "partial_rotary_factor": 0.6,
        "factor": 3.0,
    },
}
MAX_POSITIONS = 131072


def read(parameters: dict[str, Any], head_dim: int, theta: float, limit: int) -> RopeSpec:
    fields = {"rope_parameters": {"rope_theta": theta, **parameters}}
    kinds = RopeFields(kinds=(*LLAMA_FIELDS.kinds, "proportional"))
    return read_rope(ConfigReader(fields, "test"), head_dim, limit, kinds)


def oracle_module(parameters: dict[str, Any], head_dim: int, theta: float, limit: int) -> Any:
    transformers = pytest.importorskip("transformers", reason="the oracle")
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    config = transformers.LlamaConfig(
        hidden_size=4 * head_dim,
        num_attention_heads=4,
        head_dim=head_dim,
        max_position_embeddings=limit,
        rope_parameters={"rope_theta": theta, **parameters},
    )
    return LlamaRotaryEmbedding(config)


def oracle_tables(module: Any, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    import torch

    cos, sin = module(torch.zeros(1), torch.from_numpy(positions)[None])
    half = cos.shape[-1] // 2
    return cos[0, :, :half].numpy(), sin[0, :, :half].numpy()


@pytest.mark.thinned(5)
@pytest.mark.parametrize(("head_dim", "theta"), [(8, 1e4), (80, 1e4), (128, 1e6)])
@pytest.mark.parametrize("kind", KINDS)
def test_tables_equal_transformers(kind: str, head_dim: int, theta: float) -> None:
    spec = read(KINDS[kind], head_dim, theta, MAX_POSITIONS)
    module = oracle_module(KINDS[kind], head_dim, theta, MAX_POSITIONS)
    frequencies = inverse_frequencies(spec)
    # llama3's blend subtracts two like numbers and multiplies what is left by up to the factor.
    tolerance = 2e-6 if spec.kind == "llama3" else 4e-7
    np.testing.assert_allclose(frequencies, module.inv_freq.numpy(), rtol=tolerance, atol=0)
    # transformers' powers err by a unit in the last place here and there, and a position of
    # 100,000 magnifies that. Where its frequency is ours, its angle is ours.
    exact = frequencies == module.inv_freq.numpy()
    assert exact.mean() > 0.5
    positions = np.r_[0:300, 8190:8194, 32766:32770, 131000:131072]
    cos, sin = rope_tables(spec, MAX_POSITIONS)
    their_cos, their_sin = oracle_tables(module, positions)
    np.testing.assert_allclose(cos[positions][:, exact], their_cos[:, exact], rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(sin[positions][:, exact], their_sin[:, exact], rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(cos[:300], their_cos[:300], atol=1e-4)
    np.testing.assert_allclose(sin[:300], their_sin[:300], atol=1e-4)


def test_dynamic_equals_transformers_token_by_token() -> None:
    parameters, limit = KINDS["dynamic"], 48
    module = oracle_module(parameters, 64, 10000.0, limit)
    cos, sin = rope_tables(read(parameters, 64, 10000.0, limit), 200)
    first_cos, first_sin = oracle_tables(module, np.arange(limit))
    np.testing.assert_allclose(cos[:limit], first_cos, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(sin[:limit], first_sin, rtol=1e-5, atol=1e-5)
    for position in range(limit, 200):
        their_cos, their_sin = oracle_tables(module, np.array([position]))
        np.testing.assert_allclose(cos[position], their_cos[0], atol=1e-4)
        np.testing.assert_allclose(sin[position], their_sin[0], atol=1e-4)
    # The stretch is real: without it the last row would be another.
    plain = rope_tables(RopeSpec(theta=10000.0, dim=64), 200)[0]
    assert np.abs(cos[199] - plain[199]).max() > 0.5


@pytest.mark.parametrize("kind", ["default", "dynamic", "yarn"])
def test_rows_do_not_depend_on_the_table_length(kind: str) -> None:
    spec = read(KINDS[kind], 16, 10000.0, 64)
    long, short = rope_tables(spec, 9000), rope_tables(spec, 70)
    for a, b in zip(long, short, strict=True):
        assert a.dtype == np.float32
        assert a.flags.c_contiguous
        assert b.shape == (70, 8)
        np.testing.assert_array_equal(a[:70], b)


def test_extended_positions() -> None:
    def extended(kind: str, limit: int) -> int:
        return extended_positions(read(KINDS[kind], 8, 10000.0, limit), limit)

    assert extended("default", 4096) == 4096
    assert extended("linear", 4096) == 4096
    assert extended("dynamic", 4096) == 8192
    assert extended("yarn", 32768) == 131072  # as left by whoever added the scaling
    assert extended("yarn", 131072) == 131072  # as the makers write it
    assert extended("llama3", 131072) == 131072
