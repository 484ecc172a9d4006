"""The compiler accepts the small kernels for every kind of GPU. It needs no GPU."""

from __future__ import annotations

import json
import os
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
from penstock.backends.cuda.cache import allocate
from penstock.backends.cuda.kernels.combine import clamp, combine, gate, scale, soft_cap
from penstock.backends.cuda.kernels.embed import embed
from penstock.backends.cuda.kernels.heads import head_norm, kv_write, rope
from penstock.backends.cuda.kernels.latents import put_in_heads, write_latents
from penstock.backends.cuda.kernels.norm import add_norm, layer_norm
from penstock.backends.cuda.kernels.pages import PageTable
from penstock.backends.cuda.kernels.positions import add_positions, scale_by_position
from penstock.backends.cuda.kernels.rope_write import rope_write
from penstock.backends.cuda.kernels.rows import Argmax, copy_blocks, select_rows
from penstock.backends.cuda.kernels.xielu import xielu
from penstock.plan.kv_groups import KvLayer

capability = int(sys.argv[1])


class Driver:
    def get_current_target(self):
        return GPUTarget("cuda", capability, 32)

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0


found = []


def compile(kernel, grid):
    def launch(*args, **options):
        ptx = kernel.warmup(*args, grid=grid, **options).asm["ptx"]
        # Loads and stores of 16 bytes: four floats, or eight of 16 bits.
        wide = ptx.count("global.v4.b32") + ptx.count("global.v2.b64")
        wide += ptx.count("global.v4.f32") + ptx.count("global.v4.u32")
        found.append((kernel.fn.__name__, wide, "fma.rn.f32" in ptx))

    return launch


triton.runtime.driver.set_active(Driver())
triton.runtime.jit.JITFunction.__getitem__ = compile
device = torch.device("cpu")
ints = torch.zeros(64, dtype=torch.int32)
for dtype in (torch.bfloat16, torch.float32):
    embed(ints, torch.zeros(32, 4096, dtype=dtype), torch.zeros(64, 4096))
    floats = torch.zeros(64, 4096)
    for delta in (None, floats):
        add_norm(floats, delta, torch.zeros(4096), torch.zeros(64, 4096, dtype=dtype), 1e-5)
    for bias in (None, torch.zeros(4096)):
        layer_norm(floats, torch.zeros(4096), bias, torch.zeros(64, 4096, dtype=dtype), 1e-5)
    add_norm(floats, None, None, floats.to(dtype), 1e-5)
    layer_norm(floats, None, None, floats.to(dtype), 1e-5)
    head_norm(floats, torch.zeros(128), floats.to(dtype), 1e-5, 128)
    each = torch.zeros(32, 128)
    head_norm(floats, each, floats.to(dtype), 1e-5, 128, each, True)
    head_norm(floats, None, floats, 1e-5, 128)
    one = torch.zeros(1)
    xielu(floats, one, one, one, one, floats.to(dtype))
    add_positions(floats, ints, floats, 2, floats)
    scale_by_position(floats, ints, one, 0, 8192, floats.to(dtype))
    put_in_heads(floats.to(dtype), torch.zeros(64, 4608, dtype=dtype), 8, 0)
    clamp(floats, floats, 30.0)
    gate(floats, floats, floats.to(dtype), "silu")
    scale(floats, floats, 2.0)
    soft_cap(floats, floats.to(dtype), 30.0)
    select_rows(floats.to(dtype), ints, floats.to(dtype))
    # A join of both types, the second part not aligned; the activations, alone and added.
    combine(None, floats.to(dtype), torch.zeros(64, 8192, dtype=dtype)[:, 4096:])
    combine(None, floats, torch.zeros(64, 4099, dtype=dtype)[:, 3:])
    for activation in ("none", "silu", "gelu", "gelu_tanh", "relu", "relu2"):
        combine(floats, floats, floats, activation)
        combine(None, floats, floats.to(dtype), activation)
    for kv in ("bfloat16", "int8"):
        (cache,) = allocate([KvLayer(8, 128)], kv, 2, device)
        q = torch.zeros(64, 4096, dtype=dtype)
        tables = torch.zeros(100, 64), torch.zeros(100, 64)
        norms = torch.zeros(128), torch.zeros(128)
        for used in (None, norms):
            qkv = torch.zeros(64, 6144)
            for interleaved in (False, True):
                rope_write(qkv, q, cache, ints, ints, tables, used, 1e-5, interleaved)
                rope(floats, ints, tables, interleaved, 128, floats.to(dtype))
        (rows,) = allocate([KvLayer(1, 576, value_dim=512)], kv, 2, device)
        write_latents(torch.zeros(64, 576), rows, ints)
        kv_write(torch.zeros(64, 1024), torch.zeros(64, 1024), cache, ints)
        for data in cache.arrays:
            copy_blocks(torch.zeros(1, 2, dtype=torch.int32), data)
        pages = PageTable(list(cache.arrays))
        pieces = torch.zeros(3, pages.piece_bytes // 4, dtype=torch.int32)
        pages.gather(ints[:3], pieces)
        pages.scatter(ints[:3], pieces)
Argmax(64, 128256, device).run(torch.zeros(64, 128256), torch.zeros(64, 1, dtype=torch.int32))
print(json.dumps(found))
"""


@pytest.mark.slow
@pytest.mark.parametrize("capability", [80, 100])
def test_compiles(capability: int, tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "TRITON_CACHE_DIR": str(tmp_path),
        "TRITON_INTERPRET": "0",
    }
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(capability)],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    names = {name for name, _, _ in found}
    assert names == {
        "_embed",
        "_add_norm",
        "_layer_norm",
        "_norm_heads",
        "_turn_heads",
        "_write_heads",
        "_change_rows",
        "_combine",
        "_select_rows",
        "_rope_write",
        "_copy_blocks",
        "_copy_pages",
        "_largest_of_chunk",
        "_largest_of_row",
        "_xielu",
        "_by_position",
        "_write_latents",
        "_put_in_heads",
    }
    for name, wide, contracted in found:
        if name in (
            "_embed",
            "_add_norm",
            "_layer_norm",
            "_change_rows",
            "_copy_pages",
            "_select_rows",
            "_largest_of_chunk",
            "_xielu",
            "_by_position",
        ):
            assert wide > 0, f"{name} loads less than 16 bytes at a time"
        if name in ("_add_norm", "_layer_norm", "_norm_heads", "_turn_heads", "_rope_write"):
            assert not contracted, f"{name} contracts products and sums"
