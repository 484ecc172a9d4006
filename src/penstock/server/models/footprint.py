"""How much memory the processes of a model take: what they will, and what they do."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from penstock.config import EngineConfig
from penstock.gguf.names import SUFFIX
from penstock.weights.hub import resolve_model_folder

PROCESS_BYTES: Final = 112 << 20
"""What an engine's process takes beside weights and KV cache, with the process that makes prompts
of chats: interpreters, libraries, tokenizer, buffers of steps. An engine of a small model was seen
to take 68 MB, and two such processes 43 and 27 MB, pages that others have too among them."""
_WEIGHTS: Final = ("*.safetensors", f"*{SUFFIX}", "*.bin")


def expected_bytes(config: EngineConfig) -> int:
    """What a model takes that is to be loaded; one of the hub is downloaded. Takes time. Raises
    ModelError.

    Its weights count as they are stored: only after loading it is known what they take packed.
    """
    assert config.kv_cache_bytes is not None
    path = resolve_model_folder(config.model, config.revision)
    kv = config.kv_cache_bytes + (config.kv_host_bytes or 0)
    return PROCESS_BYTES + kv + _stored_bytes(path)


def process_bytes(pid: int) -> int:
    """The memory that a process and its children take now, their part of what they share with
    others; 0 where the system does not tell."""
    return sum(map(_proportional, _family(pid)))


def _stored_bytes(path: Path) -> int:
    """Bytes of the weights in a folder, or of a GGUF file with all its parts."""
    if path.is_dir():
        return max(sum(file.stat().st_size for file in path.glob(each)) for each in _WEIGHTS)
    stem, _, number = path.stem.rpartition("-of-")
    if not stem or not number.isdecimal():
        return path.stat().st_size
    parts = path.parent.glob(f"{stem.rpartition('-')[0]}-*-of-{number}{SUFFIX}")
    return sum(part.stat().st_size for part in parts)


def _family(pid: int) -> Iterator[int]:
    yield pid
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                yield from _family(int(child))


def _proportional(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    found = [int(line.split()[1]) for line in lines if line.startswith("Pss:")]
    return found[0] << 10 if found else 0
