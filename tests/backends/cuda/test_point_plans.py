"""Whole models of lattice points on the GPU's kernels: equal to the reference within rounding, to
themselves exactly, in as much memory as is reckoned; and text that they make."""

from __future__ import annotations

import gc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.checkpoints import add_tokenizer
from support.lattice_checkpoints import lattice_checkpoint, lattice_plan
from support.needs import Need, lacking, needs_native
from support.tiny_plans import Chunk, step_of, tokens_of

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="triton is not installed")

from penstock import LLM, SamplingParams  # noqa: E402
from penstock.backends.cuda.bind import bind  # noqa: E402
from penstock.backends.cuda.memory import needs  # noqa: E402
from penstock.backends.reference.executor import ReferenceExecutor  # noqa: E402
from penstock.backends.registry import BACKENDS  # noqa: E402
from penstock.interface.executor import Limits  # noqa: E402
from penstock.models.spec import DType  # noqa: E402
from penstock.plan.fuse import fuse  # noqa: E402
from penstock.quant.scheme import LatticeBits  # noqa: E402
from penstock.weights.checkpoint import open_weights  # noqa: E402

pytestmark = needs_native  # which checkpoints are made with

LIMITS = Limits(num_blocks=8, max_tokens=24, max_logit_rows=24, max_sequences=4, threads=1)
A, B = tokens_of(1, 30), tokens_of(2, 20)


@pytest.mark.parametrize(
    ("family", "bits", "dtype", "layers", "count"),
    [
        ("llama", 2, "float32", 1, 3),
        pytest.param("llama", 2, "bfloat16", 2, 9, marks=pytest.mark.slow),
        pytest.param("qwen2", 3, "float32", 2, 9, marks=pytest.mark.slow),
        pytest.param("llama", 4, "bfloat16", 2, 9, marks=pytest.mark.slow),
    ],
)
def test_a_model_computes_what_the_reference_does(
    family: str,
    bits: LatticeBits,
    dtype: DType,
    layers: int,
    count: int,
    tmp_path: Path,
    device: Any,
) -> None:
    """And the same bits in whichever company, and however a prompt is cut."""
    folder = lattice_checkpoint(tmp_path / "out", bits, family, num_hidden_layers=layers)
    plan = fuse(lattice_plan(folder, dtype))
    assert BACKENDS["cuda"].obstacle(plan) is None
    weights = open_weights(folder, plan.spec, plan.weights, dtype)
    step = step_of([Chunk(A, 0, count, [5, 2], rows=range(count))])
    expected = ReferenceExecutor(plan, weights, LIMITS).run(step).logits
    executor = bind(plan, weights, LIMITS, device)
    whole = executor.run(step).logits.copy()
    error = np.square(whole - expected).mean() / np.square(expected).mean()
    assert error < (1e-8 if dtype == "float32" else 1e-3)
    parts = []
    for first, end in ((0, 1), (1, count - 1), (count - 1, count)):
        mine = Chunk(A, first, end, [6, 3], rows=range(first, end))
        parts.append(executor.run(step_of([Chunk(B, 0, 2, [7]), mine])).logits[1:].copy())
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    executor.close()


@pytest.mark.slow
def test_what_is_reckoned_is_what_binding_allocates(tmp_path: Path, device: Any) -> None:
    if device.type != "cpu":
        lacking(Need.INTERPRETER, "other tensors of a GPU's process come and go")
    folder = lattice_checkpoint(tmp_path / "out", 3, "llama")
    plan, limits = fuse(lattice_plan(folder, "bfloat16")), replace(LIMITS, num_blocks=0)
    need = needs(plan, limits)
    gc.collect()
    before = _tensor_bytes()
    executor = bind(plan, open_weights(folder, plan.spec, plan.weights, "bfloat16"), limits, device)
    gc.collect()
    kept = sum(size for at, size in _tensor_bytes().items() if at not in before)
    pinned = 2 * executor._buffer._pinned.length * 4  # these are in the host's memory
    attention = sum(kernel.scratch_bytes for kernel in executor._attention)
    reckoned = need.total - need.reserve - (kept - pinned)
    assert 0 <= reckoned <= 200 * attention
    executor.close()


def _tensor_bytes() -> dict[int, int]:
    tensors = [x for x in gc.get_objects() if type(x) is torch.Tensor]
    storages = [x.untyped_storage() for x in tensors]
    return {storage.data_ptr(): storage.nbytes() for storage in storages if storage.nbytes()}


@pytest.mark.slow
def test_text_is_what_the_reference_writes(tmp_path: Path) -> None:
    folder = lattice_checkpoint(tmp_path / "out", 2, "llama")
    add_tokenizer(folder)
    params = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
    found = []
    for backend in ("reference", "cuda"):
        with LLM(
            str(folder), backend=backend, dtype="float32", max_num_seqs=2, max_model_len=32
        ) as llm:
            assert "E8P of 2 bits" in llm.config.reasons["quantization"]
            found.append([each.outputs[0].token_ids for each in llm.generate(["a b", "c"], params)])
    assert found[0] == found[1]
