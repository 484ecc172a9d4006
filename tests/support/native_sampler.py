"""The native sampler without a model: its executor is only there for its threads."""

from __future__ import annotations

from typing import Any

from penstock.backends.cpu.sampler import NativeSampler


def bare_executor(module: Any, vocab: int, threads: int = 1) -> Any:
    return module.Executor(
        threads=threads,
        cpus=[],
        crowded=False,
        num_blocks=1,
        max_tokens=1,
        max_logits=1,
        max_sequences=1,
        max_positions=1,
        vocabulary=vocab,
        arena_bytes=64,
        kv_elem="float32",
        kv_layers=[],
    )


def native_sampler(module: Any, vocab: int, threads: int = 1) -> NativeSampler:
    return NativeSampler(module, bare_executor(module, vocab, threads), vocab)
