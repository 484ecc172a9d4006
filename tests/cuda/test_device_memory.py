"""Pinned copies, and memory that is not there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.tiny_plans import Chunk, dummy_weights, make_spec, step_of, tokens_of

from penstock.errors import ConfigError, EngineDeadError
from penstock.interface.executor import Limits
from penstock.plan.fuse import fuse
from penstock.plan.lower import lower

LIMITS = Limits(num_blocks=16, max_tokens=32, max_logit_rows=32, max_sequences=4, threads=1)
TOKENS = tokens_of(1, 20)


def make_executor(device: Any, limits: Limits = LIMITS) -> Any:
    from penstock.backends.cuda.bind import bind

    spec = make_spec()
    plan = fuse(lower(spec, "bfloat16"))
    return bind(plan, dummy_weights(spec, 3, "bfloat16"), limits, device)


def test_copies_from_pinned_buffers_keep_what_was_written(device: Any) -> None:
    """While the device is busy, the host writes on: nothing that is on its way may change."""
    import torch

    from penstock.backends.cuda.pinned_buffers import PinnedBuffers

    pinned = PinnedBuffers(1 << 16, torch.int32, device)
    targets = [torch.zeros(1 << 16, dtype=torch.int32, device=device) for _ in range(6)]
    torch.cuda._sleep(50_000_000)
    for value, target in enumerate(targets):
        pinned.take()[:] = value
        pinned.send(target)
    for value, target in enumerate(targets):
        assert bool((target == value).all())


def test_the_buffers_are_pinned_and_sending_does_not_wait(device: Any) -> None:
    import torch

    from penstock.backends.cuda.pinned_buffers import PinnedBuffers

    pinned = PinnedBuffers(1 << 16, torch.int32, device)
    assert all(buffer.is_pinned() for buffer in pinned._buffers)
    target = torch.zeros(1 << 16, dtype=torch.int32, device=device)
    torch.cuda.synchronize()
    torch.cuda._sleep(500_000_000)  # a quarter of a second or more
    pinned.take()[:] = 1
    pinned.send(target)
    done = torch.cuda.Event()
    done.record()
    assert not done.query()
    done.synchronize()
    assert bool((target == 1).all())


def test_a_cache_that_does_not_fit_is_one_error_and_the_next_engine_starts(device: Any) -> None:
    with pytest.raises(ConfigError, match=r"not enough memory.*kv_cache_bytes"):
        make_executor(device, replace(LIMITS, num_blocks=1 << 28))
    executor = make_executor(device)
    assert executor.run(step_of([Chunk(TOKENS, 0, 20, [3])])).logits.shape == (1, 211)
    executor.close()


def test_memory_that_others_took_is_one_error(device: Any) -> None:
    import torch

    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info(device)
    taken = torch.empty(max(free - (64 << 20), 0), dtype=torch.uint8, device=device)
    try:
        with pytest.raises(ConfigError, match="other programs may have taken"):
            make_executor(device, replace(LIMITS, num_blocks=1 << 17))
    finally:
        del taken
        torch.cuda.empty_cache()


def test_memory_lost_while_running_ends_the_engine_with_one_message(
    device: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    executor = make_executor(device)

    def lose(step: object) -> Any:
        return torch.empty(1 << 50, dtype=torch.uint8, device=device)

    with monkeypatch.context() as patched:
        patched.setattr(executor._program, "run", lose)
        with pytest.raises(EngineDeadError, match="the GPU failed: CUDA out of memory"):
            executor.run(step_of([Chunk(TOKENS, 0, 20, [3])]))
    executor.close()


def test_closing_gives_the_memory_back(device: Any) -> None:
    import torch

    make_executor(device).close()  # what the process keeps for itself is there now
    before = torch.cuda.memory_allocated(device)
    executor = make_executor(device, replace(LIMITS, num_blocks=4096))
    assert torch.cuda.memory_allocated(device) > before
    logits = executor.run(step_of([Chunk(TOKENS, 0, 20, [3])])).logits
    assert np.isfinite(logits).all()
    executor.close()
    assert torch.cuda.memory_allocated(device) <= before
