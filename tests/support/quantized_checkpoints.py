"""Tiny checkpoints in quantized formats, and what their weights stand for, value by value."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from penstock.backends.cpu import bind as cpu
from penstock.backends.cpu import native
from penstock.backends.registry import backend as named
from penstock.interface.executor import Executor, Limits, run
from penstock.plan.fuse import fuse
from penstock.plan.lower import lower
from penstock.plan.plan import Plan
from penstock.quant import GroupTensor, Quantization
from penstock.weights.checkpoint import open_weights
from penstock.weights.model_folder import load_model_spec
from penstock.weights.safetensors import open_folder
from support.checkpoints import tiny_checkpoint
from support.tiny_plans import Chunk, step_of

F32 = NDArray[np.float32]
Tensors = dict[str, Any]
Pack = Callable[[np.random.Generator, str, int, int], "tuple[Tensors, F32] | None"]
"""Makes the matrix ``[n, k]`` of a module: its tensors, by what their names have behind the
module's, and its values; None leaves the matrix as it is."""

_TYPES: dict[str, Any] = {
    "F32": np.float32,
    "F16": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E8M0": ml_dtypes.float8_e8m0fnu,
    "U8": np.uint8,
    "I8": np.int8,
    "I32": np.int32,
    "I64": np.int64,
}
LIMITS = Limits(num_blocks=8, max_tokens=96, max_logit_rows=96, max_sequences=4, threads=2)
TOKENS = np.random.default_rng(2).integers(0, 301, 40).astype(np.int32)


def quantized_checkpoint(
    at: Path,
    config: dict[str, Any],
    pack: Pack,
    *,
    family: str = "llama",
    extra: Tensors | None = None,
    **fields: Any,
) -> tuple[Path, Path]:
    """A checkpoint with this ``quantization_config`` and one of the float32 values that its weights
    stand for. ``fields`` are those of the model's configuration; ``extra``, more tensors."""
    sizes = {"intermediate_size": 96, "vocab_size": 304, **fields}
    plain = tiny_checkpoint(family, **sizes)
    generator = np.random.default_rng(5)
    packed, floats = at / "packed", at / "floats"
    for folder in (packed, floats):
        shutil.copytree(plain, folder)
    tensors: Tensors = load_file(plain / "model.safetensors")
    values = dict(tensors)
    for name in list(tensors):
        module = name.removesuffix(".weight")
        if tensors[name].ndim != 2 or ("layers." not in name and module != "lm_head"):
            continue
        made = pack(generator, module, *tensors[name].shape)
        if made is None:
            continue
        del tensors[name]
        tensors |= {f"{module}.{suffix}": tensor for suffix, tensor in made[0].items()}
        values[name] = made[1]
    save_file(tensors | (extra or {}), packed / "model.safetensors")
    save_file(values, floats / "model.safetensors")
    edit_config(packed, **config)
    return packed, floats


def edit_config(folder: Path, **fields: Any) -> None:
    """Set fields of ``quantization_config``."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config["quantization_config"] = config.get("quantization_config", {}) | fields
    path.write_text(json.dumps(config))


def load(folder: Path) -> Tensors:
    """All tensors, also of types that safetensors' NumPy does not read."""
    found = open_folder(folder)
    tensors: Tensors = {}
    for name, (file, tensor) in found.items():
        octets = file.path.read_bytes()[tensor.start : tensor.stop]
        dtype = _TYPES[tensor.dtype]
        tensors[name] = np.frombuffer(octets, dtype).reshape(tensor.shape).copy()
    return tensors


def edit_tensors(folder: Path, changes: dict[str, Any]) -> None:
    """Rewrite tensors of the checkpoint: a function of the old array, or None for none."""
    tensors = load(folder)
    for name, change in changes.items():
        if change is None:
            del tensors[name]
        else:
            tensors[name] = change(tensors[name])
    save_file(tensors, folder / "model.safetensors")


def logits(
    folder: Path, backend: Any = "reference", activations: bool = False, dtype: Any = "float32"
) -> NDArray[Any]:
    """The logits of a step of 40 tokens."""
    spec = load_model_spec(folder)
    plan = fuse(lower(spec, dtype, quantization=Quantization(activations=activations)))
    return _logits(folder, named(backend).bind, plan, dtype)


def native_logits(folder: Path, plan: Plan, isa: str, dtype: Any) -> NDArray[Any]:
    """The same by a plan of the checkpoint and the CPU's kernels for one instruction set."""
    return _logits(folder, partial(cpu.bind, module=native.load(isa)), plan, dtype)


def _logits(folder: Path, bind: Callable[..., Executor], plan: Plan, dtype: Any) -> NDArray[Any]:
    executor = bind(plan, open_weights(folder, plan.spec, plan.weights, dtype), LIMITS)
    step = step_of([Chunk(TOKENS, 0, 40, [3, 1], rows=range(40))])
    result: NDArray[Any] = run(executor, step).logits.copy()
    executor.close()
    return result


def assert_columns_in_any_order(folder: Path, isa: str, activations: bool, dtype: Any) -> None:
    """Assert that what fusion joins, of matrices each of which has its columns in another order, is
    computed by parts, to the same bits, and near to the reference."""
    spec = load_model_spec(folder)
    plan = lower(spec, dtype, quantization=Quantization(activations=activations))
    got, fused = (native_logits(folder, each, isa, dtype) for each in (plan, fuse(plan)))
    np.testing.assert_array_equal(fused.view(np.uint32), got.view(np.uint32))
    reference = logits(folder, "reference", activations, dtype)
    if not activations and dtype == "float32":
        np.testing.assert_allclose(got, reference, rtol=0, atol=2e-4)
        return
    assert np.quantile(np.abs(got - reference), 0.9) < 0.05
    assert np.corrcoef(got.ravel(), reference.ravel())[0, 1] > 0.999


def assert_values(packed: Path, floats: Path) -> dict[str, GroupTensor]:
    """Assert that every weight has the values that are meant; return those kept in groups."""
    spec = load_model_spec(packed)
    plan, plain = lower(spec), lower(load_model_spec(floats))
    ours = open_weights(packed, spec, plan.weights)
    theirs = open_weights(floats, plain.spec, plain.weights)
    kept = {}
    for name in plan.weights:
        value, expected = ours.get(name), theirs.get(name)
        assert isinstance(expected, np.ndarray)
        if isinstance(value, GroupTensor):
            kept[name] = value
            assert value.codes.flags.c_contiguous
            np.testing.assert_array_equal(value.dequantize(), expected, err_msg=name)
        else:
            np.testing.assert_array_equal(value, expected, err_msg=name)
    return kept


def scales_of(generator: np.random.Generator, k: int, top: float, *shape: int) -> F32:
    """Scales of matrices with ``k`` columns and codes up to ``top``, exact in 16 bits."""
    drawn = (generator.random(shape) + 0.5) * 2 / (top * k**0.5)
    coarse = drawn.astype(ml_dtypes.bfloat16).astype(np.float16)
    scales: F32 = coarse.astype(np.float32)
    return scales


def words(codes: NDArray[Any], bits: int, places: tuple[int, ...] | None = None) -> NDArray[Any]:
    """Unsigned codes ``[a, b]`` packed along b into int32, the first in the lowest bits, or in the
    order of ``places``; what is missing of the last word is 0."""
    a, b = codes.shape
    if 32 % bits:  # a stream, in which codes may lie across words
        stream = [int(sum(int(c) << (bits * j) for j, c in enumerate(row))) for row in codes]
        size = -(-b * bits // 32) * 4
        octets = b"".join(row.to_bytes(size, "little") for row in stream)
        return np.frombuffer(octets, np.int32).reshape(a, -1)
    together = 32 // bits
    result = np.zeros((a, -(-b // together)), np.uint64)
    for j in range(b):
        place = j % together if places is None else places[j % together]
        result[:, j // together] |= codes[:, j].astype(np.uint64) << np.uint64(bits * place)
    return result.astype(np.uint32).view(np.int32)
