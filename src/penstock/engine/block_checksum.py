"""The checksum of blocks of a KV cache, for whoever copies them and has no engine."""

from __future__ import annotations

from penstock.backends.registry import block_checksum as block_checksum
