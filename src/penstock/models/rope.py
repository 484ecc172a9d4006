"""Rotary tables: cosine and sine per position, for every scaling kind.

The formulas are transformers' (``modeling_rope_utils``), and so are the roundings that matter: an
angle is the float32 product of a float32 frequency and the position, since at position 100,000 one
unit in the last place of a frequency already moves the angle by 0.01. Cosine and sine of that
angle are then taken in float64, and rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from penstock.errors import ModelError
from penstock.models.rope_spec import RopeSpec

Floats = NDArray[np.float32]

ROWS_AT_FIRST = 4096
"""Positions that contexts usually stay within. Those that models allow are many more: to fill the
tables of Gemma 3 270M for its 32,768 took 0.25 s of each start, and 34 MB."""
ROWS_AT_ONCE = 16_384
"""Rows that are computed when a table grows: some 40 ms for heads of 128 components."""

_CHUNK = 4096  # positions at a time: keeps the float64 temporaries of a 128-wide head at 2 MiB


def rope_tables(spec: RopeSpec, max_positions: int) -> tuple[Floats, Floats]:
    """Cosine and sine, each float32 ``[max_positions, spec.dim / 2]``, C-contiguous.

    For every kind but ``dynamic`` the frequencies are one row for all positions. Dynamic NTK
    stretches the base with the length of the sequence, which would make a cached key depend on
    when it was computed. Here the token at position p uses the frequencies of a sequence of length
    ``max(p + 1, original_max_positions)``: independent of chunking, and equal to transformers for
    every prompt within the original limit and every token decoded one at a time after it.

    LongRoPE has frequencies for short sequences and others for long ones, and transformers changes
    from the ones to the others as a sequence grows, though the keys that it has cached were rotated
    by the former. Here one list is chosen for a plan (:meth:`RopeSpec.for_context`), which must
    have happened; ``max_positions``, which memory may limit, changes no row.

    Raises ModelError where a frequency is no positive number.
    """
    check_computable(spec, max_positions)
    return rope_rows(spec, 0, max_positions)


def rope_rows(spec: RopeSpec, first: int, end: int) -> tuple[Floats, Floats]:
    """The rows of :func:`rope_tables` for positions from ``first`` up to ``end``."""
    half = spec.dim // 2
    cos = np.empty((end - first, half), np.float32)
    sin = np.empty((end - first, half), np.float32)
    fixed = None if spec.kind == "dynamic" else inverse_frequencies(spec)
    scale = np.float32(spec.attention_factor)
    for start in range(first, end, _CHUNK):
        stop = min(start + _CHUNK, end)
        positions = np.arange(start, stop, dtype=np.float32)
        frequencies = _dynamic(spec, start, stop) if fixed is None else fixed
        angles = (positions[:, None] * frequencies).astype(np.float64)
        rows = slice(start - first, stop - first)
        cos[rows] = np.cos(angles)
        sin[rows] = np.sin(angles)
    if scale != 1.0:
        cos *= scale
        sin *= scale
    return cos, sin


def check_computable(spec: RopeSpec, max_positions: int) -> None:
    """Raise ModelError where a frequency is no positive number."""
    if not is_computable(spec, max_positions):
        raise ModelError(f"rotations of {spec} cannot be computed for {max_positions} positions")


def positions_to_fill(positions: int, max_positions: int) -> int:
    """How many rows a table of ``max_positions`` is filled to that must have ``positions``.

    Most contexts are far shorter than a model allows, and a table for 16 million positions takes
    minutes and gigabytes. So tables are filled as far as contexts come, in steps of
    :data:`ROWS_AT_ONCE`, and at first up to :data:`ROWS_AT_FIRST`.
    """
    beyond = max(positions - ROWS_AT_FIRST, 0)
    return min(ROWS_AT_FIRST + -(-beyond // ROWS_AT_ONCE) * ROWS_AT_ONCE, max_positions)


def is_computable(spec: RopeSpec, max_positions: int) -> bool:
    """Whether all entries of the tables would be finite: every frequency is a positive number, but
    for those of pairs that do not rotate.

    The stretch of ``dynamic`` grows with the position, so its last one stands for all. Where a list
    of ``longrope`` is yet to be chosen, it holds for both.
    """
    if spec.kind == "longrope" and spec.chosen is None:
        lists = replace(spec, chosen="short"), replace(spec, chosen="long")
        return all(is_computable(each, max_positions) for each in lists)
    with np.errstate(all="ignore"):
        frequencies = inverse_frequencies(spec)
        if spec.kind == "dynamic":
            last = _dynamic(spec, max_positions - 1, max_positions)[0]
            frequencies = np.concatenate([frequencies, last])
    least = frequencies[: spec.rotating] if spec.kind == "proportional" else frequencies
    positive = np.isfinite(least) & (least > 0)
    return bool(positive.all()) and 0 < spec.attention_factor < math.inf


def inverse_frequencies(spec: RopeSpec) -> Floats:
    """Radians per position, float32 ``[dim / 2]``; for ``dynamic``, within the original limit.

    Raises ValueError for ``longrope`` of which no list is chosen.
    """
    plain = _base_frequencies(np.float32(spec.theta), spec.dim)
    if spec.kind == "proportional":
        plain[spec.rotating :] = 0.0
        return plain / np.float32(spec.factor)
    if spec.kind == "linear":
        return plain / np.float32(spec.factor)
    if spec.kind == "llama3":
        return _llama3(spec, plain)
    if spec.kind == "yarn":
        return _yarn(spec)
    if spec.kind == "longrope":
        if spec.chosen is None:
            raise ValueError("no list of longrope is chosen: call for_context")
        chosen = spec.long_factors if spec.chosen == "long" else spec.short_factors
        factors = np.array(chosen, np.float32)
        return np.float32(1.0) / (factors * _powers(np.float32(spec.theta), spec.dim))
    return plain


def longrope_notes(ropes: Iterable[RopeSpec], tokens: int, asked: bool) -> tuple[str, ...]:
    """Return notes for the user on the list that was chosen for contexts of ``tokens``, which were
    ``asked`` for or are the model's limit; none if the model has no LongRoPE."""
    what = "max_model_len" if asked else "the model's limit"
    notes = []
    for rope in ropes:
        if rope.kind != "longrope":
            continue
        trained, long = rope.original_max_positions, rope.chosen == "long"
        where = "beyond" if long else "within"
        advice = f"; for shorter contexts set max_model_len to {trained}" if long else ""
        notes.append(
            f"LongRoPE: the {rope.chosen} list of frequencies, as {what}, {tokens} tokens, is "
            f"{where} the {trained} that it was first trained with{advice}"
        )
    return tuple(notes)


def _exponents(dim: int) -> Floats:
    return np.arange(0, dim, 2, dtype=np.float32) / np.float32(dim)


def _powers(base: np.float32 | Floats, dim: int) -> Floats:
    """``base ** (0, 2/dim, 4/dim, ...)`` correctly rounded to float32."""
    return (np.asarray(base, np.float64) ** _exponents(dim).astype(np.float64)).astype(np.float32)


def _base_frequencies(base: np.float32 | Floats, dim: int) -> Floats:
    result: Floats = np.float32(1.0) / _powers(base, dim)
    return result


def _dynamic(spec: RopeSpec, start: int, stop: int) -> Floats:
    """NTK-aware scaling by sequence length, float32 ``[stop - start, dim / 2]``."""
    one, factor = np.float32(1.0), np.float32(spec.factor)
    original = np.float32(spec.original_max_positions)
    lengths = np.maximum(np.arange(start + 1, stop + 1, dtype=np.float32), original)
    stretch = factor * lengths / original - (factor - one)
    power = spec.dim / (spec.dim - 2)
    # Rounded after each step, as float32 arithmetic would be.
    grown = (stretch.astype(np.float64) ** float(np.float32(power))).astype(np.float32)
    bases: Floats = np.float32(spec.theta) * grown
    return _base_frequencies(bases[:, None], spec.dim)


def _llama3(spec: RopeSpec, plain: Floats) -> Floats:
    """Divide low frequencies by the factor, keep high ones, blend between (Llama 3.1)."""
    one, factor = np.float32(1.0), np.float32(spec.factor)
    low, high = spec.low_freq_factor, spec.high_freq_factor
    wavelength = np.float32(2 * math.pi) / plain
    long, short = spec.original_max_positions / low, spec.original_max_positions / high
    scaled: Floats = np.where(wavelength > np.float32(long), plain / factor, plain)
    if high == low:  # nothing lies between
        return scaled
    smooth = np.float32(spec.original_max_positions) / wavelength - np.float32(low)
    smooth = smooth / np.float32(high - low)
    blended = (one - smooth) * scaled / factor + smooth * scaled
    between = (wavelength >= np.float32(short)) & (wavelength <= np.float32(long))
    result: Floats = np.where(between, blended, scaled)
    return result


def _yarn(spec: RopeSpec) -> Floats:
    """Interpolate slow dimensions, keep fast ones, ramp between (arXiv 2309.00071)."""
    one, dim = np.float32(1.0), spec.dim

    def dimension(rotations: float) -> float:
        turns = spec.original_max_positions / (rotations * 2 * math.pi)
        return dim * math.log(turns) / (2 * math.log(spec.theta))

    low, high = dimension(spec.beta_fast), dimension(spec.beta_slow)
    if spec.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001  # the ramp must have a width
    ramp = (np.arange(dim // 2, dtype=np.float32) - np.float32(low)) / np.float32(high - low)
    keep = one - np.clip(ramp, np.float32(0.0), one)
    powers = _powers(np.float32(spec.theta), dim)
    interpolated, plain = one / (np.float32(spec.factor) * powers), one / powers
    result: Floats = interpolated * (one - keep) + plain * keep
    return result
