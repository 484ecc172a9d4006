"""The one size that cache, scheduler and kernels share."""

BLOCK_SIZE = 32
"""Tokens per KV block. 32 keys fill two 16-lane score registers and one 64-byte row of pairs."""
