"""Compiles the kernels of adapters for GPUs that need not be there, and prints what each takes.

Run as a program, with the interpreter off: ``test_compiled.py`` does.
"""

from __future__ import annotations

import argparse
import json
import re

import torch
from compile_products import resources

from penstock.backends.cuda.adapter_rows import tiles_of
from penstock.backends.cuda.kernels.adapters import (
    MOST_SPLIT,
    DownSlots,
    Tiles,
    UpSlots,
    adapter_down,
    adapter_up,
    padded_columns,
    tile_height,
    up_columns,
    up_room,
)
from penstock.backends.cuda.variants import recording

K, WIDTHS, SLOTS = 4096, [1024, 256], 8
CASES = [
    (16, torch.bfloat16, torch.bfloat16),
    (64, torch.bfloat16, torch.bfloat16),
    (256, torch.float32, torch.float16),
]
"""Ranks, types of weights and of x."""


def launch(rank: int, weights: torch.dtype, x_dtype: torch.dtype, rows: int) -> None:
    """Both kernels, for ``rows`` rows of all slots."""
    there = torch.device("meta")
    parts = len(WIDTHS)

    def empty(*shape: int, dtype: torch.dtype = weights) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device=there)

    small = (SLOTS, parts)
    down = DownSlots(
        empty(*small, rank, padded_columns(K)),
        empty(*small, dtype=torch.int32),
        empty(*small, dtype=torch.float32),
        K,
    )
    columns = empty(len(up_columns(WIDTHS)), 3, dtype=torch.int32)
    up = UpSlots(empty(SLOTS, sum(WIDTHS), up_room(rank)), columns, 0)
    lists = tiles_of(torch.arange(rows, dtype=torch.int32).numpy() % SLOTS, tile_height(rows))
    listed = Tiles(*(empty(*each.shape, dtype=torch.int32) for each in lists))
    splits = down.splits[0] if rows <= MOST_SPLIT else 1
    sums = empty(splits, rows, parts * rank, dtype=torch.float32)
    adapter_down(empty(rows, K, dtype=x_dtype), down, listed, sums)
    adapter_up(sums, down, up, listed, empty(rows, sum(WIDTHS), dtype=torch.float32))


def instructions(ptx: str) -> list[str]:
    """What multiplies, without the number of rows that an instruction takes."""
    found = re.findall(r"((?:wgmma|tcgen05)\.mma\S*|mma\.sync\S*)", ptx)
    return sorted({re.sub(r"n\d+k", "k", each) for each in found})


def main(capabilities: list[str]) -> None:
    for capability in capabilities:
        major, minor = map(int, capability.split("."))
        for case in CASES:
            for rows in (1, MOST_SPLIT + 1):
                with recording((major, minor)) as found:
                    launch(*case, rows)
                for each in found.values():
                    kernel = each.compile()
                    out = {"capability": capability, "case": str(case), "rows": rows}
                    out |= {"name": each.name, "shared": kernel.metadata.shared}
                    out["products"] = instructions(kernel.asm["ptx"])
                    out["copies of 16 bytes"] = kernel.asm["ptx"].count("cp.async.cg")
                    print(json.dumps(out | resources(kernel.asm["cubin"])), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("capabilities", nargs="+", metavar="9.0")
    main(parser.parse_args().capabilities)
