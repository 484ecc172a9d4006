"""What engines that are measured are started with."""

from __future__ import annotations

from pathlib import Path

import msgspec

from gpu.workload import Size
from penstock.config import EngineConfig


def engine_config(model: Path, size: Size, /, **changes: object) -> EngineConfig:
    """The engine that all measurements share; its cache takes all memory that is left.

    A ``model`` among the changes is the name of another folder beside ``model``.
    """
    if "model" in changes:
        model = model.parent / str(changes.pop("model"))
    config = EngineConfig(
        model=str(model),
        load_format="dummy",
        backend="cuda",
        max_model_len=size.longest,
        max_num_seqs=max(size.host_batch, 1),
    )
    return msgspec.structs.replace(config, **changes)
