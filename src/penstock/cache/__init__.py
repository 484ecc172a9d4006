"""Bookkeeping of the KV cache: blocks, their owners, and prefixes that can be found again."""
