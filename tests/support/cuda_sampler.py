"""The sampler of GPUs beside NumPy's definition. Kernels are imported with it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from penstock.backends.cuda.sampling.memory import Sizes
from penstock.backends.cuda.sampling.pending import PendingSample
from penstock.backends.cuda.sampling.sampler import DeviceSampler
from penstock.interface.mask import TokenMask
from penstock.interface.sampler import Sampled
from penstock.sampling.params import SamplingParams
from penstock.sampling.reference import NumpySampler
from support.samplers import assert_equal, result_of, run
from support.sampling_strategies import constrained


def device() -> Any:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def device_sampler(vocab: int, rows: int = 16, batch: int = 3, chunk: int = 64) -> DeviceSampler:
    return DeviceSampler(Sizes(vocab, rows, batch, chunk), device())


def check(
    logits: np.ndarray,
    params: list[SamplingParams],
    prompt: list[int] | None = None,
    output: list[int] | None = None,
    chunk: int = 64,
    allowed: list[TokenMask | None] | None = None,
) -> Sampled:
    if allowed is not None:
        params = constrained(params, allowed)
    expected = run(NumpySampler(), logits, params, prompt or [], output or [], allowed)
    sampler = device_sampler(logits.shape[1], chunk=chunk)
    found = run(sampler, logits, params, prompt or [], output or [], allowed)
    assert_equal(found, expected)
    assert found.not_plain == expected.not_plain
    return expected


def queue(sampler: DeviceSampler, logits: np.ndarray, states: list[Any]) -> PendingSample:
    """A launch that is not waited for."""
    result = result_of(logits)
    on_device = torch.from_numpy(result.logits).to(device())
    argmax = torch.from_numpy(result.argmax).to(device())
    return sampler.launch(on_device, argmax, list(range(len(states))), states)
