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

_MOST_WIDE = 256
"""Components of a float32 latent where a program has 99 KiB: its queries are there twice, once as
TF32 and once as what that leaves of them."""


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


def latent_tiling(
    heads: int, value_dim: int, product_bytes: int, capability: Capability
) -> LatentTiling:
    """Return the sizes for ``heads`` query heads over latents of ``value_dim``, whose products are
    of so many bytes an element.

    Raises ValueError where the GPU has not the shared memory for them.
    """
    wide = product_bytes == 4
    if capability[0] == 9:
        rows, tile, stages = (16, 16, 3) if wide else (64, 64, 3)
    elif capability[0] == 10:
        rows, tile, stages = (16, 16, 3) if wide else (64, 32, 3)
    elif capability in ((8, 0), (8, 7)):
        rows, tile, stages = (16, 16, 2) if wide else (32, 32, 3)
    else:
        if wide and value_dim > _MOST_WIDE:
            raise ValueError(
                f"latents of {value_dim} in float32 do not fit this GPU's shared memory, those of "
                f"{_MOST_WIDE} would; choose --kv-cache-dtype bfloat16"
            )
        rows, tile, stages = (16, 16, 2) if wide else (32, 16, 3)
    groups = next(n for n in range(1, heads + 1) if heads % n == 0 and heads // n <= rows)
    return LatentTiling(groups, rows, tile, stages, 8)
