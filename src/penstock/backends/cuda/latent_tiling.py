"""How attention over latents is cut for a GPU, which its results' last bits depend on.

All query heads share one key of some 576 components, whose first 512 are the value, so a token is
read once for as many heads as the rows of a tile hold. What a tile needs: its queries, in shared
memory or registers; its sums, twice (of the split and of all before it), in registers; and the keys
that are on their way, in shared memory.

64 rows are the fewest that Hopper's and Blackwell's wide instructions take. At 512 components in 16
bits they are 64 KiB of queries, 72 with their tails, and 128 KiB of float32 sums; two tiles of 32
keys are 72 KiB more, and keep enough bytes on their way for one program a multiprocessor. Other
GPUs, whose instructions take 16 rows and keep queries in registers, have 32 rows, or 16 of float32.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.backends.cuda.capability import Capability


class LatentTiling(NamedTuple):
    """Sizes that depend on the geometry, the cache's type and the kind of GPU alone."""

    groups: int
    """Number of groups of query heads; each reads the cache for itself."""
    rows: int
    tile: int
    """Tokens of a tile of keys."""
    stages: int
    """Stages of the loop over tiles, of which one loads block ids."""
    warps: int


def latent_tiling(heads: int, product_bytes: int, capability: Capability) -> LatentTiling:
    """Return the sizes for ``heads`` query heads whose products are of so many bytes an element."""
    wide = product_bytes == 4
    if capability[0] in (9, 10):
        rows, tile, stages = (32, 16, 3) if wide else (64, 32, 3)
    elif capability in ((8, 0), (8, 7)):
        rows, tile, stages = (16, 16, 2) if wide else (32, 32, 3)
    else:
        rows, tile, stages = (16, 16, 2) if wide else (32, 16, 3)
    groups = next(n for n in range(1, heads + 1) if heads % n == 0 and heads // n <= rows)
    return LatentTiling(groups, rows, tile, stages, 8)
