"""The compiler accepts attention for every kind of GPU. It needs no GPU, nor the interpreter."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="triton is not installed")

CHILD = """
import json, sys
import torch, triton
from triton.backends.compiler import GPUTarget
import penstock.backends.cuda.attention as wrapper
from penstock.backends.cuda.cache import allocate
from penstock.plan.plan import KvLayer

capability, kv, activation, head_dim, window, tree = json.loads(sys.argv[1])


class Driver:
    def get_current_target(self):
        return GPUTarget("cuda", capability, 32)

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0


compiled = []


class Compile:
    def __getitem__(self, grid):
        return lambda *args, **options: compiled.append(kernel.warmup(*args, grid=grid, **options))


triton.runtime.driver.set_active(Driver())
kernel, wrapper.attention = wrapper.attention, Compile()
device = torch.device("cpu")
own = wrapper.AttentionKernel(8, 2, head_dim, 0.1, window, 64, 8, 4096, device, 264)
own.stages = wrapper.stages_for(divmod(capability, 10))
(cache,) = allocate([KvLayer(2, head_dim)], kv, 2, device)
q = torch.zeros(4, 8 * head_dim, dtype=getattr(torch, activation))


class Step:
    block_ids = torch.zeros(4, dtype=torch.int32)


work = torch.zeros(wrapper.FIELDS * 4, dtype=torch.int32)
own.run(q, q.clone(), cache, Step(), work, wrapper.TreeRows(work, work) if tree else None)
(result,) = compiled
asm = {form: result.asm[form] for form in ("ttgir", "ptx")}
print(json.dumps({"shared": result.metadata.shared, **asm}))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("capability", "kv", "activation", "head_dim", "window", "shared"),
    [
        (80, "bfloat16", "bfloat16", 128, None, 163 // 2),
        (80, "int8", "bfloat16", 80, 4096, 163 // 2),
        (89, "float32", "float32", 128, None, 99),
        (90, "float32", "float32", 256, None, 227),
        (90, "bfloat16", "bfloat16", 128, None, 227 // 2),
        (90, "float16", "float32", 64, 4096, 227 // 2),
        (90, "int8", "bfloat16", 128, None, 227 // 2),
        (100, "bfloat16", "bfloat16", 256, None, 227),
    ],
)
def test_compiles_within_shared_memory(
    capability: int,
    kv: str,
    activation: str,
    head_dim: int,
    window: int | None,
    shared: int,
    tmp_path: Path,
) -> None:
    """For two programs a multiprocessor where that is what is counted on; ``shared`` is in KiB."""
    check_compiled([capability, kv, activation, head_dim, window, False], shared, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("kv", ["bfloat16", "int8"])
def test_compiles_for_draft_trees(kv: str, tmp_path: Path) -> None:
    check_compiled([90, kv, "bfloat16", 128, 4096, True], 227 // 2, tmp_path)


def check_compiled(arguments: list[object], shared: int, tmp_path: Path) -> None:
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path)}
    environment.pop("TRITON_INTERPRET", None)
    case = json.dumps(arguments)
    done = subprocess.run(
        [sys.executable, "-c", CHILD, case], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["shared"] + 1024 <= shared * 1024
    # Keys and values come by asynchronous copies of 16 bytes.
    assert "cp.async.cg.shared.global" in result["ptx"]
    # Sums over a row's scores have one layout, hence one order, in masked tiles and others.
    layouts = re.findall(r"tensor<64x\d+xf32, #(\w+)>\) -> .*dim = 1", result["ttgir"])
    assert len(layouts) >= 4
    assert len(set(layouts)) == 1
