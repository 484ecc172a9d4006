"""Randomness without state: every draw is a hash of the sequence's seed and where the draw is used.

A sequence's n-th token takes the n-th draw of its own stream, so its text depends on nothing that
runs beside it and survives preemption: there is no generator to save or to replay.

The hash is the output function of SplitMix64 (Steele, Lea and Flood, "Fast splittable
pseudorandom number generators", OOPSLA 2014; constants of variant 13 of Stafford's mixer) over
a Weyl sequence, which is that generator with random access.
"""

from __future__ import annotations

_MASK = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15  # odd, close to 2**64 divided by the golden ratio


def mix64(value: int) -> int:
    """A bijection of 64-bit integers under which every input bit affects every output bit."""
    value &= _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def sequence_key(seed: int, index: int) -> int:
    """The key of sequence ``index`` of a request with ``seed`` (any integer, taken modulo 2**64).

    The seed is mixed before the index is added: requests with neighbouring seeds share no keys.
    """
    return mix64(mix64(seed + _GAMMA) + (index + 1) * _GAMMA)


def draw64(key: int, position: int, stream: int = 0) -> int:
    """A uniform 64-bit integer for output ``position`` of the sequence with ``key``.

    ``stream`` separates several draws at one position (choosing a token, accepting a draft, ...).
    """
    if stream:
        key = mix64(key + stream * _GAMMA)
    return mix64(key + (position + 1) * _GAMMA)


def below(limit: int, bits: int) -> int:
    """``bits`` (64 of them, uniform) scaled to ``0 <= result < limit``; bias under limit/2**64."""
    return (bits * limit) >> 64
