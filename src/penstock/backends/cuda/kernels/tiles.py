"""The tiles of a product: a table by rows, and arithmetic on sizes. There is no autotuning.

Floors. Few rows: a product reads its weights once, so it takes at least ``nbytes / bandwidth``:
an ``[4096, 4096]`` matrix 10 us in bfloat16, 5 us in 8 and 2.6 us in 4 bits of an H100's 3.35 TB/s.
Many rows: ``2 * rows * n * k / rate``: 2048 rows of that matrix take 70 us of its 989 TFLOP/s in
bfloat16, 35 us in int8. They cross at about 300 rows in bfloat16.

Few rows. To stream at full bandwidth a multiprocessor must have about 36 KiB on its way (25 GB/s
each times 0.8 us and a reserve), so tiles of 64 columns by 128 of k (8 to 16 KiB) are loaded up to
six stages ahead, by two programs a multiprocessor. An H100 has 132 of them: where n gives fewer
than 256 programs, K is split. Rows are re-read from L2 by every program; at 64 rows of 16 bits they
are as many bytes as 64 columns of weights, so from there on tiles are 128 columns wide.

Many rows. A tile of 128 by 128 does 64 operations per byte it loads in bfloat16, one of 256 by 128
does 85; the 128 by 128 float32 sums of eight warps are 64 registers of a thread. Two or three sets
of sums (the gate beside the up; a group's beside the total) leave no room for larger ones.

Rows do not depend on their number. Where sums are of floats, n and k alone choose the splits of K
and thereby the order of additions: sums within a split ascend in k by instructions of one shape
(columns are always the tensor cores' larger side, 64 or 128, rows only change how many columns the
instruction has), splits are added in their order, whether one program or many compute them. Sums of
integers are exact, so there rows choose too; scales of groups are then added in the order of
groups by one program, with no splits. Where several GPUs each have some columns of a product, n
is that of the whole product, or a column's sum would depend on how many share it.

Experts. A product of experts is one of many matrices, each with a few of the rows and tiles of its
own. Which rows it has is known on the device alone, so the grid has as many tiles as any choice can
make (:func:`most_tiles`). Shares are uneven: where weights' bytes take the time a tile holds twice
the rows that an expert has on average, so that few experts are read twice; where arithmetic does,
half of them, so that what fills up its last tile is little. A row's sums are those of a plain
product with its expert's matrix: n and k of one matrix choose the splits.
"""

from __future__ import annotations

from dataclasses import dataclass

PROGRAMS = 256
"""Programs that keep all of a GPU's multiprocessors loading: about two each."""

MAX_PARALLEL = 512
"""Programs of a launch that splits K; bounds the scratch memory of their sums."""

SHORTEST = 512
"""Columns of k a split has at least, so that filling the pipeline is a small part of it."""

STEP = 16
"""Rows of a tile are a multiple of this, and tiles change at its multiples."""

_FEW = (1, 2, 4, 8)
"""Rows up to which products of experts have other tiles: each token adds those of some experts."""

UNIT = 256
"""Splits begin at its multiples: all formats' iterations divide it."""


@dataclass(frozen=True)
class Tile:
    """The part of a product that one program computes at a time."""

    rows: int
    cols: int
    depth: int  # columns of k in an iteration
    unroll: int  # iterations loaded as one
    warps: int
    stages: int
    splits: int
    length: int  # columns of k in a split
    parallel: bool
    """Each split has a program of its own; else one program computes all of them in order."""


@dataclass(frozen=True)
class Kind:
    """The operands of a product, as far as tiles depend on them."""

    weight_bits: int
    x_bytes: int  # of an element as it is multiplied
    integers: bool = False
    by_group: bool = False
    """Sums of groups are scaled and added, or those of second points."""
    depth: int | None = None
    """Columns of a unit (``packing.py``); None: weights are no codes."""
    gated: bool = False
    looked_up: bool = False
    """Loaded codes are addresses of what is loaded then, in a stage of its own."""

    @property
    def exact(self) -> bool:
        """Whether all sums are of integers, and none is rounded until the last."""
        return self.integers and not self.by_group


def row_steps(max_rows: int) -> tuple[int, ...]:
    """Return numbers of rows up to ``max_rows`` at which, and between which never, tiles change."""
    return (*(n for n in _FEW if n < max_rows), *range(STEP, max_rows, STEP), max_rows)


def row_step(rows: int) -> int:
    """Return the number that ``rows`` counts as where tiles change at :func:`row_steps` alone."""
    few = next((n for n in _FEW if rows <= n), None)
    return -(-rows // STEP) * STEP if few is None else few


def most_tiles(rows: int, experts: int, height: int) -> int:
    """Return the most tiles that ``rows`` rows of so many experts make, however they are shared."""
    parts = min(rows, experts)
    return (rows + parts * (height - 1)) // height


def splits_of(n: int, k: int) -> tuple[int, int]:
    """Return the splits of K and their length for float sums: they depend on n and k alone, and n
    is that of the whole product where ranks share it."""
    return _split(PROGRAMS, -(-n // 64), k)


def choose(
    kind: Kind,
    rows: int,
    n: int,
    k: int,
    capability: tuple[int, int],
    experts: int = 1,
    times: int = 1,
    whole_n: int | None = None,
) -> Tile:
    """Return the tile for ``rows`` rows; n counts columns of ``out``, k includes padding.

    With ``experts`` each row is multiplied by ``times`` of so many matrices of n columns.
    ``whole_n``: the columns of the product of which these are a rank's, if they are not all.
    """
    splits, length = 1, k
    if not kind.integers:
        splits, length = splits_of(whole_n or n, k)
    typical = rows
    if experts > 1:
        rows = row_step(rows) * times
        mean = -(-rows // experts)
        typical = min(2 * mean, max(64, mean // 2))
    matrices = min(rows, experts)
    height, cols, warps = _shape(kind, typical, n, splits, capability, max(1, matrices))
    tiles = most_tiles(rows, experts, height) * -(-n // cols)
    if kind.exact:
        splits, length = _split(PROGRAMS, tiles, k)
    depth = kind.depth or (128 if height <= 32 else 64) * 2 // max(kind.x_bytes, 2)
    # What surrounds an iteration's work takes as many instructions as unpacking 4 KiB.
    small = kind.depth and cols * depth * kind.weight_bits <= 8 * 4096
    # With few stages codes would not be loaded ahead of what is looked up by them.
    unroll = 2 if small and not kind.looked_up else 1
    # Scales and zero points, or windows, are in the pipeline too: of four groups at most.
    marks = 32 * (cols + (height if kind.integers else 0)) if kind.by_group else 4 * cols
    operands = depth * (cols * kind.weight_bits // 8 + height * kind.x_bytes)
    stage = unroll * (operands + (marks if kind.depth else 0))
    room = _shared_bytes(capability) // (1 if warps > 4 else 2)
    stages = max(2, min(6, room // stage, length // (unroll * depth)))
    parallel = splits > 1 and (kind.exact or tiles * splits <= MAX_PARALLEL)
    return Tile(height, cols, depth, unroll, warps, stages, splits, length, parallel)


def _shape(
    kind: Kind, rows: int, n: int, splits: int, capability: tuple[int, int], matrices: int
) -> tuple[int, int, int]:
    """Return rows, columns and warps of a tile, where each of ``matrices`` has ``rows`` rows."""
    # Registers hold the sums of all sections, and where not Hopper's or later servers' tensor
    # cores multiply, operands too.
    crowded = capability[0] not in (9, 10)
    if matrices > 1 and kind.depth and kind.gated and splits > 1:
        crowded = True  # three sets of sums, codes that are unpacked, and places of gathered rows
    sections = (kind.by_group or crowded) and not kind.exact and (kind.gated or splits > 1)
    if kind.integers and kind.by_group and rows <= 64:
        # No splits here: narrower tiles make up for them. Results do not depend on tiles.
        cols = next((c for c in (64, 32) if matrices * -(-n // c) >= PROGRAMS // 2), 16)
        height = 16 if rows <= 16 else 32 if rows <= 32 else 64
        return height, cols, min(4, max(cols // 16, cols * height // 512))
    if rows <= 32:
        return 16 if rows <= 16 else 32, 64, 4
    if rows <= 64 or sections:
        return 64, 128, 8
    if rows > 256 and kind.exact and not kind.gated and not crowded:
        return 256, 128, 8
    return 128, 128, 8


def _split(programs: int, tiles: int, k: int) -> tuple[int, int]:
    wanted = max(1, min(-(-programs // tiles), k // SHORTEST, 16))
    length = -(-k // wanted // UNIT) * UNIT
    return -(-k // length), length


def _shared_bytes(capability: tuple[int, int]) -> int:
    """Return the shared memory for pipelines, a little below what a program may have."""
    kib = {(8, 0): 160, (8, 7): 160, (9, 0): 220, (10, 0): 220, (10, 3): 220}
    return kib.get(capability, 96) * 1024
