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
from penstock.plan.kv_groups import KvLayer


class Driver:
    capability = 0

    def get_current_target(self):
        return GPUTarget("cuda", self.capability, 32)

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0


class Compile:
    def __getitem__(self, grid):
        return lambda *args, **options: compiled.append(kernel.warmup(*args, grid=grid, **options))


class Step:
    block_ids = torch.zeros(4, dtype=torch.int32)


triton.runtime.driver.set_active(Driver())
kernel, wrapper.attention = wrapper.attention, Compile()
device = torch.device("cpu")
for capability, kv, activation, head_dim, window, tree, value_dim in json.loads(sys.argv[1]):
    compiled = []
    Driver.capability = capability
    at, kv_heads = divmod(capability, 10), 2 if value_dim is None else 1
    geometry = (8, kv_heads, head_dim, 0.1, window)
    own = wrapper.AttentionKernel(*geometry, 64, 8, 4096, device, 264, at, value_dim, kv)
    (cache,) = allocate([KvLayer(kv_heads, head_dim, value_dim=value_dim)], kv, 2, device)
    q = torch.zeros(4, 8 * head_dim, dtype=getattr(torch, activation))
    work = torch.zeros(wrapper.FIELDS * 4, dtype=torch.int32)
    own.run(q, q.clone(), cache, Step(), work, wrapper.TreeRows(work, work) if tree else None)
    (result,) = compiled
    asm = {form: result.asm[form] for form in ("ttgir", "ptx")}
    print(json.dumps({"shared": result.metadata.shared, **asm}))
"""

CASES = {
    # capability, cache, activations, head size, window, draft trees, and of it a latent: KiB of
    # shared memory, for two programs a multiprocessor where that is what is counted on
    (80, "int8", "bfloat16", 80, 4096, False, None): 163 // 2,
    (89, "float32", "float32", 128, None, False, None): 99,
    (90, "bfloat16", "bfloat16", 128, None, False, None): 227 // 2,
    (100, "bfloat16", "bfloat16", 256, None, False, None): 227,
    (90, "int8", "bfloat16", 128, 4096, True, None): 227 // 2,
    (80, "fp8", "bfloat16", 128, None, False, None): 163 // 2,
    (80, "int4", "bfloat16", 128, 4096, False, None): 163 // 2,
    (90, "int4", "bfloat16", 80, None, True, None): 227 // 2,
    (90, "k8v4", "bfloat16", 256, None, False, None): 227,
    (90, "bfloat16", "bfloat16", 576, None, False, 512): 227,
}


@pytest.mark.slow
def test_compiles_within_shared_memory(tmp_path: Path) -> None:
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path)}
    environment.pop("TRITON_INTERPRET", None)
    done = subprocess.run(
        [sys.executable, "-c", CHILD, json.dumps(list(CASES))],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    for (case, shared), line in zip(CASES.items(), done.stdout.splitlines(), strict=True):
        result = json.loads(line)
        assert result["shared"] + 1024 <= shared * 1024, case
        # Keys and values come by asynchronous copies of 16 bytes.
        assert "cp.async.cg.shared.global" in result["ptx"], case
        # Sums over a row's scores have one layout, hence one order, in masked tiles and others.
        layouts = re.findall(r"tensor<64x\d+xf32, #(\w+)>\) -> .*dim = 1", result["ttgir"])
        assert len(layouts) >= 4, case
        assert len(set(layouts)) == 1, case
