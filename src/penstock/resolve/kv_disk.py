"""Decides where blocks of the KV cache are kept on disk."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from penstock.config import EngineConfig
from penstock.errors import ConfigError
from penstock.kv_disk_config import KvDisk, absolute_path
from penstock.resolve.inputs import Reasons


@dataclass(frozen=True)
class KvDiskDecision:
    """The disk below the KV cache."""

    disk: KvDisk | None
    reasons: Reasons
    """Empty where there is none."""


def decide_kv_disk(config: EngineConfig) -> KvDiskDecision:
    """Return the folder and size asked for. Raises ConfigError for what is none."""
    key_file = config.kv_disk_key_file
    if config.kv_disk is None:
        if key_file is not None:
            raise ConfigError("kv_disk_key_file is the key of kv_disk, which is not given")
        return KvDiskDecision(None, {})
    if not config.enable_prefix_caching:
        raise ConfigError(
            "kv_disk finds blocks by their content, as prefix caching does; leave one of both out"
        )
    why = (
        "as asked; a prefix is read there where that takes less time than computing it, by the "
        "times measured while the engine runs"
    )
    disk = KvDisk.parse(config.kv_disk)
    if key_file is not None:
        path = absolute_path("kv_disk_key_file", key_file)
        disk = msgspec.structs.replace(disk, key_file=str(path))
        why += "; encrypted"
    return KvDiskDecision(disk, {"kv_disk": why})
