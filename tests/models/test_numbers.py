"""Whatever number stands in a configuration: a model, or one ModelError that names it."""

from __future__ import annotations

import contextlib
import copy
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import ModelError
from penstock.models.limits import MAX_POSITIONS
from penstock.models.registry import read_spec
from penstock.models.rope import rope_tables
from penstock.models.spec import ModelSpec
from penstock.weights.model_folder import load_draft_heads_spec, load_model_spec

BASE: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "bos_token_id": 1,
    "eos_token_id": [2],
    "dtype": "float32",
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {
    "rope_type": "yarn",
    "factor": 8.0,
    "original_max_position_embeddings": 64,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "attention_factor": 1.2,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": BASE,
    "linear": BASE | {"rope_scaling": {"type": "linear", "factor": 2.0}},
    "dynamic": BASE | {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
    "llama3": BASE | {"rope_scaling": LLAMA3},
    "yarn": BASE | {"rope_parameters": YARN | {"rope_theta": 10000.0}},
    "mistral": BASE | {"architectures": ["MistralForCausalLM"], "sliding_window": 32},
    "qwen2": BASE
    | {
        "architectures": ["Qwen2ForCausalLM"],
        "use_sliding_window": True,
        "sliding_window": 32,
        "max_window_layers": 1,
    },
    "qwen3": BASE | {"architectures": ["Qwen3ForCausalLM"]},
}
ODD: list[Any] = [
    0, -1, 1, 2, 3, 5, 7, 2**24, 2**24 + 1, 2 * 10**9, 2**31 - 1, 2**31, 2**63, 2**64, 10**400,
    10**5000, 0.0, -0.0, 0.5, 1.0, -1.0, 1e-308, 5e-324, 1e-30, 1e30, 1e300, 1e308, -1e308,
    math.inf, -math.inf, math.nan, True, False, None, "", "1", "1e5", [], [1], [[]], {}, {"a": 1},
    [2**70], [math.nan],
]  # fmt: skip


def numeric(config: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Paths of all fields that hold a number, or a list of them."""
    for key, value in config.items():
        if isinstance(value, dict):
            yield from numeric(value, (*path, key))
        elif not isinstance(value, (str, bool)) and value != config.get("architectures"):
            yield (*path, key)


def changed(config: dict[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    result = copy.deepcopy(config)
    inner = result
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return result


def check(spec: ModelSpec) -> None:
    """The spec is one that can be computed with."""
    assert 0 < spec.max_positions <= MAX_POSITIONS
    for norm in {spec.final_norm, *(layer.mlp_norm for layer in spec.layers)} - {None}:
        assert np.isfinite(np.float32(norm.eps))
        assert np.float32(norm.eps) > 0
    ropes = {layer.attention.rope for layer in spec.layers} - {None}
    for rope in ropes:
        if rope.dim > 256:
            continue
        for context in (1, spec.max_positions):  # either list, of kinds that have two
            for table in rope_tables(rope.for_context(context), min(spec.max_positions, 600)):
                assert np.isfinite(table).all()
    for layer in spec.layers[:2]:
        assert layer.attention.num_heads % layer.attention.num_kv_heads == 0
        assert layer.attention.window is None or layer.attention.window > 0
    assert all(0 <= token < spec.vocab_size for token in spec.eos_token_ids)


def read(config: dict[str, Any]) -> None:
    """It is refused in a line, or gives a model that can be computed with."""
    problem = ""
    try:
        spec = read_spec(config)
    except ModelError as error:
        problem = str(error)
    else:
        check(spec)
    assert len(problem.splitlines()) <= 1
    assert len(problem) < 500


FIELDS = [(name, path) for name, config in CONFIGS.items() for path in numeric(config)]


@pytest.mark.parametrize("name", CONFIGS)
def test_unchanged(name: str) -> None:
    check(read_spec(CONFIGS[name]))


@pytest.mark.parametrize(("name", "path"), FIELDS, ids=str)
def test_odd_numbers(name: str, path: tuple[str, ...]) -> None:
    for value in ODD:
        read(changed(CONFIGS[name], path, value))


@pytest.mark.parametrize(("name", "path"), FIELDS, ids=str)
def test_what_is_no_number_of_anything_is_named(name: str, path: tuple[str, ...]) -> None:
    for value in (math.nan, math.inf, 1e308, -1, "1", 10**5000, [math.nan]):
        with pytest.raises(ModelError, match=path[-1]):
            read_spec(changed(CONFIGS[name], path, value))


@pytest.mark.parametrize(
    ("name", "path", "value", "message"),
    [
        ("linear", ("rope_scaling", "factor"), 1e308, r"factor \(1e\+308\) must be from 0.001 to"),
        ("linear", ("rope_scaling", "factor"), 5e-324, r"factor \(5e-324\) must be from 0.001 to"),
        ("yarn", ("rope_parameters", "factor"), 1e308, "must be from 0.001 to"),
        ("yarn", ("rope_parameters", "factor"), 1e6, r"makes 64000000 positions of 64"),
        ("yarn", ("rope_parameters", "beta_fast"), 1e308, r"beta_fast .* must be from 0.001 to"),
        ("yarn", ("rope_parameters", "beta_slow"), 5e-324, r"beta_slow .* must be from 0.001 to"),
        ("llama3", ("rope_scaling", "low_freq_factor"), 1e-300, "must be from 0.001 to"),
        ("llama", ("max_position_embeddings",), 2 * 10**9, r"must be from 1 to 16777216"),
        ("llama", ("rope_theta",), 1e300, r"must be greater than 1 and at most 1e\+15"),
        ("llama", ("rms_norm_eps",), 1e308, r"must be from 1e-20 to 1"),
        ("llama", ("num_attention_heads",), 2**30, r"must be from 1 to 65536"),
    ],
)
def test_messages(name: str, path: tuple[str, ...], value: Any, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        read_spec(changed(CONFIGS[name], path, value))


VALUES = st.one_of(
    st.sampled_from(ODD),
    st.integers(),
    st.integers(0, 2**32),
    st.floats(),
    st.floats(1e-4, 1e10),
    st.recursive(st.none() | st.booleans() | st.text(max_size=3), st.lists, max_leaves=4),
)


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(data=st.data())
def test_any_change_ends_in_a_model_or_an_error(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(CONFIGS)))
    config = CONFIGS[name]
    for path in data.draw(st.lists(st.sampled_from(list(numeric(config))), max_size=4)):
        config = changed(config, path, data.draw(VALUES))
    read(config)


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_any_generation_config(data: st.DataObject) -> None:
    try:
        spec = read_spec(BASE, generation={"eos_token_id": data.draw(VALUES)})
    except ModelError:
        return
    check(spec)


@pytest.mark.parametrize(
    "text", ['{"vocab_size": 1e999}', '{"a": ' + "9" * 5000 + "}", "[" * 100_000, '{"a": "\xff"}']
)
def test_files(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(ModelError):
        load_model_spec(tmp_path)


HEADS: list[tuple[Any, dict[str, Any]]] = [
    ("medusa", {"medusa_num_heads": 2, "medusa_num_layers": 1, "vocab_size": 128}),
    ("medusa", {"medusa_num_heads": 2, "hidden_size": 64}),
    ("eagle", BASE | {"num_hidden_layers": 1}),
    (
        "eagle",
        BASE
        | {
            "num_hidden_layers": 1,
            "draft_vocab_size": 32,
            "target_hidden_size": 64,
            "eagle_aux_hidden_state_layer_ids": [0, 1, 2],
        },
    ),
]


@pytest.mark.thinned(2)
@pytest.mark.parametrize(("kind", "config"), HEADS)
def test_heads(tmp_path: Path, kind: Any, config: dict[str, Any]) -> None:
    target = read_spec(BASE | {"num_hidden_layers": 6})
    for path in numeric(config):
        for value in ODD:
            if isinstance(value, int) and abs(value) > 10**4000:
                continue  # JSON has none
            text = json.dumps(changed(config, path, value))
            (tmp_path / "config.json").write_text(text)
            with contextlib.suppress(ModelError):
                load_draft_heads_spec(tmp_path, kind, target, dummy=True)
