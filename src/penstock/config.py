"""The engine's options, and how they become the values that a machine runs with."""

from __future__ import annotations

from typing import Literal

import msgspec

LoadFormat = Literal["auto", "dummy"]
DTypeOption = Literal["auto", "float32", "bfloat16", "float16"]
BackendName = Literal["auto", "cpu", "reference"]


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What a user asks for. ``None`` and ``"auto"`` mean: chosen for the machine and the model.

    ``resolve`` turns it into a :class:`ResolvedConfig`; nothing else reads a ``None``.
    """

    model: str = ""
    """A checkpoint folder, a hub id, or empty for the demo model that ships with Penstock."""
    revision: str | None = None
    tokenizer: str | None = None
    """Folder or hub id of the tokenizer; None: the model's own."""
    served_model_name: str | None = None
    dtype: DTypeOption = "auto"
    """Type of the weights in memory; auto keeps the checkpoint's."""
    load_format: LoadFormat = "auto"
    """dummy: seeded random weights from a config alone."""
    backend: BackendName = "auto"
    threads: int | None = None
    """Compute threads; None: the cores this process may use."""
    max_model_len: int | None = None
    """Longest prompt plus output, in tokens; None: the model's own limit, or what the cache holds."""
    kv_cache_bytes: int | None = None
    """Memory for the KV cache; None: a share of what is free."""
    max_num_seqs: int = 64
    """Sequences that run in one step."""
    max_num_batched_tokens: int = 512
    """Tokens computed in one step: the budget that decode and prefill share."""
    enable_prefix_caching: bool = True
    seed: int = 0
    """Seed of dummy weights and of the seeds given to requests that name none."""


class ResolvedConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine runs with: every value decided, each with its reason in ``reasons``."""

    model_path: str
    tokenizer_path: str
    served_model_name: str
    dtype: Literal["float32", "bfloat16", "float16"]
    load_format: LoadFormat
    backend: Literal["cpu", "reference"]
    threads: int
    max_model_len: int
    num_blocks: int
    kv_cache_bytes: int
    max_num_seqs: int
    max_num_batched_tokens: int
    enable_prefix_caching: bool
    seed: int
    reasons: dict[str, str]

    def explain(self) -> str:
        """One line per option: value and why."""
        width = max(len(name) for name in self.reasons)
        return "\n".join(
            f"{name:<{width}}  {getattr(self, name)}  ({why})" for name, why in self.reasons.items()
        )
