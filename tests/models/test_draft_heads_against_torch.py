"""Heads in their published forms, beside plain torch code of each: rows of the target and drafts.

The torch code reads the arrays that the checkpoint was written from, recomputes every row from the
first, and knows nothing of plans, caches or names.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file
from support.checkpoints import VOCAB
from support.head_checkpoints import (
    DRAFT_VOCAB,
    EAGLE1,
    EAGLE3,
    HEADS,
    HIDDEN,
    KV_HEADS,
    MEDUSA,
    Arrays,
    eagle1_arrays,
    eagle3_arrays,
    medusa_arrays,
    target_folder,
    write_heads,
)
from support.tiny_plans import Chunk, step_of

from penstock.backends.cpu import native
from penstock.backends.registry import backend as named
from penstock.interface.executor import Executor, Limits
from penstock.models.draft_heads import DraftHeadsSpec
from penstock.models.draft_heads_config import DraftHeadsKind
from penstock.models.spec import DType
from penstock.plan.fuse import fuse
from penstock.plan.lower import lower
from penstock.weights.checkpoint import open_weights
from penstock.weights.model_folder import load_draft_heads_spec, load_model_spec
from penstock.weights.token_map import read_token_map

torch = pytest.importorskip("torch", reason="the oracle")

LIMITS = Limits(num_blocks=8, max_tokens=64, max_logit_rows=64, max_sequences=4, threads=2)
BACKENDS = ["reference", *(["cpu"] if native.runnable() else [])]
Floats = NDArray[np.float32]

# Of the largest value. Sums of a few hundred float32 products in another order; bfloat16 rounds
# the activations between products to 8 bits, which torch here does not.
TOLERANCES: dict[DType, float] = {"float32": 1e-5, "bfloat16": 0.02}


def assert_close(found: Floats, expected: Any, dtype: DType) -> None:
    bound = TOLERANCES[dtype] * float(expected.abs().max())
    np.testing.assert_allclose(found, expected.numpy(), rtol=0, atol=bound)


def rounded(arrays: Arrays, dtype: DType) -> dict[str, Any]:
    """As torch tensors in float32, with the values that a checkpoint in ``dtype`` holds."""
    kept = {"bfloat16": ml_dtypes.bfloat16}.get(dtype, np.float32)
    return {
        name: torch.from_numpy(np.ascontiguousarray(array.astype(kept).astype(np.float32)))
        for name, array in arrays.items()
    }


def norm(x: Any, weight: Any) -> Any:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * weight


def layer(w: dict[str, Any], at: str, read: Any, x: Any, theta: float) -> Any:
    """A Llama layer: attention over ``read`` [T, ...] and the MLP, added to ``x`` [T, hidden]."""
    count, dim = len(x), HIDDEN // HEADS
    angles = torch.arange(count)[:, None] * theta ** (-torch.arange(0, dim, 2) / dim)
    angles = torch.cat([angles, angles], dim=1)[:, None, :]

    def turned(y: Any) -> Any:
        half = torch.cat([-y[..., dim // 2 :], y[..., : dim // 2]], dim=-1)
        return y * angles.cos() + half * angles.sin()

    q = turned((read @ w[f"{at}self_attn.q_proj.weight"].T).view(count, HEADS, dim))
    k = turned((read @ w[f"{at}self_attn.k_proj.weight"].T).view(count, KV_HEADS, dim))
    v = (read @ w[f"{at}self_attn.v_proj.weight"].T).view(count, KV_HEADS, dim)
    k, v = (y.repeat_interleave(HEADS // KV_HEADS, dim=1) for y in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q, k) / dim**0.5
    scores += torch.full((count, count), -torch.inf).triu(1)
    attended = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v).reshape(count, -1)
    x = x + attended @ w[f"{at}self_attn.o_proj.weight"].T
    h = norm(x, w[f"{at}post_attention_layernorm.weight"])
    gate = torch.nn.functional.silu(h @ w[f"{at}mlp.gate_proj.weight"].T)
    return x + (gate * (h @ w[f"{at}mlp.up_proj.weight"].T)) @ w[f"{at}mlp.down_proj.weight"].T


def eagle1_oracle(w: dict[str, Any], tokens: Any, features: Any) -> tuple[Any, Any]:
    """Residual streams and logits of all rows."""
    x = torch.cat([w["embed_tokens.weight"][tokens], features], dim=1) @ w["fc.weight"].T
    x = x + w.get("fc.bias", 0.0)
    x = layer(w, "layers.0.", x, x, 10000.0)
    return x, x @ w["lm_head.weight"].T


def eagle3_oracle(w: dict[str, Any], tokens: Any, features: Any) -> tuple[Any, Any]:
    """As above; of features, either the taps or what follows them is zero."""
    g = features[:, :-HIDDEN] @ w["fc.weight"].T + features[:, -HIDDEN:]
    e = norm(w["embed_tokens.weight"][tokens], w["midlayer.input_layernorm.weight"])
    read = torch.cat([e, norm(g, w["midlayer.hidden_norm.weight"])], dim=1)
    x = layer(w, "midlayer.", read, g, 500000.0)
    return x, norm(x, w["norm.weight"]) @ w["lm_head.weight"].T


def read(folder: Path, kind: DraftHeadsKind, target: Path) -> DraftHeadsSpec:
    return load_draft_heads_spec(folder, kind, load_model_spec(target))


def executor_of(
    folder: Path, spec: DraftHeadsSpec, target: Path, backend: str, dtype: DType, fused: bool = True
) -> Executor:
    plan = lower(spec, dtype)
    plan = fuse(plan) if fused else plan
    assert plan.feature_size == spec.feature_size
    weights = open_weights(folder, spec, plan.weights, dtype, target=target)
    return named(backend).bind(plan, weights, LIMITS)


def ways() -> list[Any]:
    """The reference backend runs both forms of a plan."""
    plain = [pytest.param("reference", False, id="primitive")]
    return plain + [pytest.param(backend, True, id=backend) for backend in BACKENDS]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("backend", "fused"), ways())
@pytest.mark.parametrize("blocks", [0, 1, 2])
def test_medusa(tmp_path: Path, backend: str, fused: bool, dtype: DType, blocks: int) -> None:
    arrays, target = medusa_arrays(blocks=blocks), target_folder()
    config = MEDUSA | {"medusa_num_layers": blocks}
    folder = write_heads(tmp_path, config, arrays, "medusa_lm_head.safetensors")
    spec = read(folder, "medusa", target)
    assert (spec.kind, spec.hidden_size, spec.vocab_size) == ("medusa", HIDDEN, VOCAB)
    executor = executor_of(folder, spec, target, backend, dtype, fused)
    features = np.random.default_rng(1).standard_normal((5, HIDDEN), np.float32)
    step = step_of([Chunk(np.zeros(5, np.int32), 0, 5, [0], rows=[1, 2, 4])])
    result = executor.run(replace(step, features=features, groups=()))
    w = rounded(arrays, dtype)
    logits = [result.logits, *result.more_logits]
    assert len(logits) == 3
    for h, found in enumerate(logits):
        x = torch.from_numpy(features[[1, 2, 4]])
        for b in range(blocks):
            y = x @ w[f"{h}.{b}.linear.weight"].T + w[f"{h}.{b}.linear.bias"]
            x = x + torch.nn.functional.silu(y)
        assert_close(found, x @ w[f"{h}.{blocks}.weight"].T, dtype)
    np.testing.assert_array_equal(result.argmax, result.logits.argmax(1))
    executor.close()


CASES: dict[str, tuple[dict[str, Any], Callable[[], Arrays], str]] = {
    "eagle1": (EAGLE1, eagle1_arrays, ""),
    "eagle1-no-bias": (EAGLE1 | {"bias": False}, lambda: eagle1_arrays(bias=False), "model."),
    "eagle1-shared": (EAGLE1, lambda: eagle1_arrays(embed=False), ""),
    "eagle3": (EAGLE3, eagle3_arrays, ""),
    "eagle3-own": (EAGLE3, lambda: eagle3_arrays(embed=True), ""),
    "eagle3-layers": (EAGLE3, lambda: eagle3_arrays(at="layers.0."), "model."),
    "eagle3-taps": (
        EAGLE3 | {"eagle_aux_hidden_state_layer_ids": [1, 6]},
        lambda: eagle3_arrays(taps=2),
        "",
    ),
}


@pytest.mark.thinned(5)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("backend", "fused"), ways())
@pytest.mark.parametrize("case", CASES)
def test_eagle(tmp_path: Path, backend: str, fused: bool, dtype: DType, case: str) -> None:
    """Two sequences: rows of the target in two chunks each, then rows that follow drafts."""
    config, make, prefix = CASES[case]
    arrays, target = make(), target_folder()
    kept = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.float32
    folder = write_heads(tmp_path, config, arrays, prefix=prefix, dtype=kept)
    spec = read(folder, "eagle", target)
    executor = executor_of(folder, spec, target, backend, dtype, fused)
    eagle3 = case.startswith("eagle3")
    outputs = DRAFT_VOCAB if eagle3 else VOCAB
    w = rounded(arrays, dtype)
    w = {name.replace("layers.0.", "midlayer.") if eagle3 else name: w[name] for name in w}
    theirs = load_file(target / "model.safetensors")
    names = {"model.embed_tokens.weight": "embed_tokens.weight", "lm_head.weight": "lm_head.weight"}
    shared = rounded({own: theirs[name] for name, own in names.items()}, dtype)
    w = shared | w
    oracle = eagle3_oracle if eagle3 else eagle1_oracle

    generator = np.random.default_rng(2)
    size, wide = spec.feature_size, spec.feature_size - HIDDEN
    lengths, blocks, drafts = (39, 6), ([5, 2], [3]), 3
    tokens = [generator.integers(0, VOCAB, n + drafts).astype(np.int32) for n in lengths]
    features = [np.zeros((n + drafts, size), np.float32) for n in lengths]
    for n, given in zip(lengths, features, strict=True):
        given[:n, : wide or size] = generator.standard_normal((n, wide or size), np.float32)

    def run(starts: list[int], stops: list[int]) -> tuple[list[Floats], list[Floats]]:
        chunks = [
            Chunk(t, a, b, own, rows=[b - 1], hidden=range(a, b - 1))
            for t, a, b, own in zip(tokens, starts, stops, blocks, strict=True)
        ]
        rows = [f[a:b] for f, a, b in zip(features, starts, stops, strict=True)]
        result = executor.run(replace(step_of(chunks), features=np.concatenate(rows)))
        assert result.hidden is not None
        assert result.hidden.dtype == np.float32
        assert result.logits.shape == (2, outputs)
        return list(result.logits.copy()), list(result.hidden[:2].copy())

    def check(stops: list[int], logits: list[Floats], hidden: list[Floats]) -> None:
        for t, f, stop, found, state in zip(tokens, features, stops, logits, hidden, strict=True):
            ids = torch.from_numpy(t[:stop]).long()
            reported, expected = oracle(w, ids, torch.from_numpy(f[:stop]))
            assert_close(state, reported[-1], dtype)
            assert_close(found, expected[-1], dtype)

    with torch.no_grad():
        run([0, 0], [20, 2])
        starts = list(lengths)
        logits, hidden = run([20, 2], starts)
        check(starts, logits, hidden)
        for _ in range(drafts):
            for f, at, state in zip(features, starts, hidden, strict=True):
                f[at, wide if eagle3 else 0 :] = state
            stops = [at + 1 for at in starts]
            logits, hidden = run(starts, stops)
            check(stops, logits, hidden)
            starts = stops
    executor.close()


@pytest.mark.parametrize("file", ["medusa_lm_head.pt", "model.safetensors", "pytorch_model.bin"])
def test_files_and_prefixes_are_one(tmp_path: Path, file: str) -> None:
    arrays, target = medusa_arrays(), target_folder()
    plain = write_heads(tmp_path / "a", MEDUSA, arrays, "medusa_lm_head.safetensors")
    other = write_heads(tmp_path / "b", MEDUSA, arrays, file, prefix="medusa_head.")
    spec = read(plain, "medusa", target)
    assert read(other, "medusa", target) == spec
    declared = lower(spec).weights
    first, second = (open_weights(at, spec, declared, "float32") for at in (plain, other))
    assert set(first.names()) == set(declared)
    for name in first.names():
        np.testing.assert_array_equal(first.get(name), second.get(name))


def test_tokens_of_drafts(tmp_path: Path) -> None:
    arrays, target = eagle3_arrays(), target_folder()
    spec = read(write_heads(tmp_path, EAGLE3, arrays, "pytorch_model.bin"), "eagle", target)
    offsets = lower(spec).token_offsets
    assert offsets is not None
    tokens = read_token_map(tmp_path, offsets, spec.vocab_size)
    assert tokens.dtype == np.int32
    np.testing.assert_array_equal(tokens, np.flatnonzero(arrays["t2d"]))
