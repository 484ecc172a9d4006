"""Compiles products for GPUs that need not be there, and prints the result of each as JSON.

Run as a program, with the interpreter off: ``test_compiled.py`` does.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from penstock.backends.cuda.kernels import launch
from penstock.backends.cuda.kernels.product import product_kernel
from penstock.backends.cuda.kernels.tiles import choose
from penstock.backends.cuda.matrix import Shape, make_matrix
from penstock.backends.cuda.workspace import Workspace
from penstock.models.spec import Activation
from penstock.quant import GridScheme, GroupScheme, LatticeScheme, QuantScheme
from penstock.quant.formats import GGUF_FORMATS

TOOLS = os.path.join(os.path.dirname(triton.__file__), "backends", "nvidia", "bin")
INT32 = ("rows", "n", "k", "padded", "x_stride", "w_stride", "marks_stride", "x_groups_stride",
         "out_stride")  # fmt: skip
NAMES = {
    torch.bfloat16: "*bf16", torch.float32: "*fp32", torch.int8: "*i8", torch.int16: "*i16",
    torch.uint8: "*u8", torch.int32: "*i32",
}  # fmt: skip


def compiled(
    scheme: QuantScheme | None, weight_only: bool, gated: Activation | None, n: int, k: int,
    rows: int, capability: tuple[int, int],
) -> dict[str, Any]:  # fmt: skip
    """What a product of bfloat16 activations takes on a GPU of ``capability``."""
    shape = Shape(n, k, rows, gated is not None)
    nowhere = Workspace(torch.device("meta"))
    weights = make_matrix(
        shape, "bfloat16", scheme, nowhere, torch.bfloat16, weight_only=weight_only
    ).weights
    kind = weights.kind(torch.bfloat16, shape.gated)
    tile = choose(kind, rows, n, weights.padded, capability)
    constants = launch.constants(weights, tile, k == weights.padded, True, gated)
    types = dict.fromkeys(("scales", "x_scales", "bias", "out"), "*fp32")
    types |= dict.fromkeys(("marks", "x_sums", "counters"), "*i32")
    types |= {"x": "*i8" if weights.integers else "*bf16", "w": NAMES[weights.w.dtype]}
    types |= {"high": types["w"] if weights.high is None else NAMES[weights.high.dtype]}
    if weights.layout is not None:
        types["scales"] = types["w"] if weights.scales is None else "*i32"
    types |= {"partials": "*i32" if kind.exact else "*fp32"} | dict.fromkeys(INT32, "i32")
    names = product_kernel.arg_names
    source = ASTSource(
        product_kernel,
        {name: types.get(name, "constexpr") for name in names},
        {"P": constants},
        {  # as launches find addresses and sizes: multiples of 16
            (i,): [["tt.divisibility", 16]]
            for i, name in enumerate(names)
            if name in types and name not in ("rows", "x_groups_stride")
        },
    )
    target = GPUTarget("cuda", 10 * capability[0] + capability[1], 32)
    options = {"num_warps": tile.warps, "enable_fp_fusion": False}
    kernel = triton.compile(source, target=target, options=options)
    ptx = kernel.asm["ptx"]
    return {
        "tile": asdict(tile),
        "shared": kernel.metadata.shared,
        "products": sorted(set(re.findall(r"(wgmma|mma\.sync|tcgen05)[\w.]*?mma", ptx)))
        or sorted(set(re.findall(r"\b(mma\.sync)\b", ptx))),
        "copies of 16 bytes": len(re.findall(r"cp\.async\.cg[^;]*0x10,", ptx)),
        **resources(kernel.asm["cubin"]),
    }


def resources(cubin: bytes) -> dict[str, int]:
    """Registers of a thread, and bytes that it spills."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        usage = subprocess.run(
            [os.path.join(TOOLS, "cuobjdump"), "-res-usage", file.name],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", usage)
    assert found, usage
    return {"registers": int(found[1]), "stack": int(found[2])}


def cases() -> Iterator[tuple[QuantScheme | None, bool, Activation | None]]:
    yield None, False, "silu"
    yield GridScheme(8), False, None
    yield GridScheme(4, 32), False, "silu"
    yield GridScheme(4, 32), True, None
    yield GroupScheme(4, 128), True, "silu"
    yield GroupScheme(4, 32, True), True, None
    yield GroupScheme(8, 128, True), False, None
    yield GGUF_FORMATS["Q4_K"].scheme, True, "silu"
    yield GGUF_FORMATS["Q6_K"].scheme, True, None
    yield LatticeScheme(2, seed=0), True, None
    yield LatticeScheme(3, seed=0), True, None


def main(capabilities: list[str], all_rows: list[int]) -> None:
    for capability in capabilities:
        major, minor = map(int, capability.split("."))
        for scheme, weight_only, gated in cases():
            for rows in all_rows:
                case = {"capability": capability, "scheme": str(scheme), "rows": rows}
                case |= {"weight_only": weight_only, "gated": gated}
                out = compiled(scheme, weight_only, gated, 4096, 4096, rows, (major, minor))
                print(json.dumps(case | out), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("capabilities", nargs="+", metavar="9.0")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 64, 2048])
    args = parser.parse_args()
    main(args.capabilities, args.rows)
