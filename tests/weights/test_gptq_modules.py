"""GPTQ's checkpoints whose modules differ: what ``dynamic`` and lists of modules say of each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.gptq_checkpoints import Quantized
from support.needs import needs_native
from support.quantized_checkpoints import (
    Pack,
    assert_values,
    edit_config,
    logits,
    quantized_checkpoint,
)

from penstock.errors import WeightError
from penstock.models.modules import parts
from penstock.plan.lower import lower
from penstock.quant import GroupScheme
from penstock.weights.checkpoint import open_weights
from penstock.weights.model_folder import load_model_spec

USUAL = {"bits": 4, "group": 32, "sym": True, "shuffled": False}
BASE: dict[str, Any] = {
    "quant_method": "gptq",
    "bits": 4,
    "group_size": 32,
    "sym": True,
    "checkpoint_format": "gptq_v2",
}


def gptq(*rules: tuple[str, dict[str, Any] | None]) -> Pack:
    """Modules with part of a name in them differ as the first rule says, or are left in floats."""

    def pack(generator: np.random.Generator, module: str, n: int, k: int) -> Any:
        changes = next((change for part, change in rules if part in module), {})
        if changes is None:
            return None
        matrix = Quantized(generator, n, k, **USUAL | changes)
        tensors = matrix.tensors("", v1=False)
        return {name.removeprefix("."): t for name, t in tensors.items()}, matrix.values()

    return pack


DYNAMIC: dict[str, Any] = {
    r"-:.*\.0\.self_attn\.q_proj": {},
    r"+:.*\.down_proj$": {"bits": 8, "group_size": -1},
    r"model\.layers\.1\.mlp": {"group_size": 64, "sym": False},
    r".*\.mlp\.gate_proj": {"desc_act": True},
}
PACKED: Any = (
    ("lm_head", None),
    ("0.self_attn.q_proj", None),
    ("down_proj", {"bits": 8, "group": -1}),
    ("layers.1.mlp", {"group": 64, "sym": False}),
    ("mlp.gate_proj", {"shuffled": True}),
)


def test_the_first_expression_that_a_name_begins_with_decides(tmp_path: Path) -> None:
    packed, floats = quantized_checkpoint(tmp_path, BASE | {"dynamic": DYNAMIC}, gptq(*PACKED))
    kept = assert_values(packed, floats)
    assert "layers.0.q" not in kept
    assert kept["layers.1.q"].scheme == GroupScheme(4, 32)
    assert kept["layers.1.down"].scheme == GroupScheme(8, None, zero_points=True)
    assert kept["layers.1.up"].scheme == GroupScheme(4, 64, zero_points=True)
    assert kept["layers.0.gate"].order is not None
    own = load_model_spec(packed).quantized
    assert own is not None
    assert own.any_order
    assert str(own) == (
        "GPTQ, int8 by row with zero points, int4 by 64 with zero points, int4 by 32"
    )


@needs_native
@pytest.mark.parametrize("activations", [False, True])
def test_backends_compute_matrices_in_several_schemes(tmp_path: Path, activations: bool) -> None:
    packed, floats = quantized_checkpoint(tmp_path, BASE | {"dynamic": DYNAMIC}, gptq(*PACKED))
    expected = logits(packed, "reference", activations)
    if not activations:
        np.testing.assert_allclose(expected, logits(floats), rtol=0, atol=2e-4)
        np.testing.assert_allclose(logits(packed, "cpu"), expected, rtol=0, atol=2e-4)
    else:  # a value on the border between two codes may go either way
        got = logits(packed, "cpu", activations)
        assert np.quantile(np.abs(got - expected), 0.9) < 0.05


@pytest.mark.parametrize(
    "listed", [[["self_attn.q_proj", "self_attn.o_proj"], ["mlp.down_proj"]], ["mlp.down_proj"]]
)
@pytest.mark.parametrize("head", [False, True])
def test_modules_of_blocks(tmp_path: Path, listed: Any, head: bool) -> None:
    names = [name for some in listed for name in (some if isinstance(some, list) else [some])]
    usual: list[tuple[str, dict[str, Any] | None]] = [(name, {}) for name in names]
    usual += [("lm_head", {})] if head else []
    config = BASE | {"modules_in_block_to_quantize": listed, "lm_head": head}
    packed, floats = quantized_checkpoint(tmp_path, config, gptq(*usual, ("", None)))
    assert len(assert_values(packed, floats)) == 2 * len(names) + head


def test_experts(tmp_path: Path) -> None:
    rules: Any = (("lm_head", None), (".gate", None), ("experts", {}), ("", {"bits": 8}))
    dynamic = {r"-:.*\.gate$": {}, r".*\.self_attn\.": {"bits": 8}}
    packed, floats = quantized_checkpoint(
        tmp_path, BASE | {"dynamic": dynamic}, gptq(*rules), family="mixtral"
    )
    np.testing.assert_allclose(logits(packed), logits(floats), rtol=0, atol=2e-4)


def test_a_matrix_that_is_not_as_it_is_said_to_be(tmp_path: Path) -> None:
    packed, _ = quantized_checkpoint(tmp_path, BASE | {"dynamic": DYNAMIC}, gptq(*PACKED))
    edit_config(packed, dynamic={key: DYNAMIC[key] for key in list(DYNAMIC)[1:]})
    spec = load_model_spec(packed)
    with pytest.raises(WeightError, match=r"lacks tensor .*0.self_attn.q_proj.qweight"):
        open_weights(packed, spec, lower(spec).weights)
    edit_config(packed, dynamic={"-:.*": {}})
    spec = load_model_spec(packed)
    with pytest.raises(WeightError, match=r"lacks .*but has .*quantization_config") as caught:
        open_weights(packed, spec, lower(spec).weights)
    assert "lm_head to true" not in str(caught.value)


@pytest.mark.parametrize(
    ("entry", "meant", "others"),
    [
        ("gate", ["a.0.mlp.gate"], ["a.0.mlp.gate_proj"]),
        ("model.layers.1", ["model.layers.1.mlp.up"], ["model.layers.11.mlp.up"]),
        ("layers.1.mlp", ["language_model.layers.1.mlp.up"], ["layers.1.mlpx"]),
        ("lm_head", ["lm_head", "language_model.lm_head"], ["lm_head2"]),
        ("*.mlp.gate", ["a.mlp.gate"], ["a.mlp.gate_proj", "mlp.gate"]),
        ("model.layers.*.self_attn*", ["model.layers.3.self_attn.q"], ["model.layers.3.mlp.up"]),
        ("a(b", ["x.a(b.c"], ["ab"]),
    ],
)
def test_entries_of_lists(entry: str, meant: list[str], others: list[str]) -> None:
    assert all(name in parts([entry]) for name in meant)
    assert not any(name in parts([entry]) for name in others)
