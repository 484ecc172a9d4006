"""What ``close`` gives back: all memory of the device, at once."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="triton is not installed")

from support.tiny_plans import Chunk, dummy_weights, make_spec, step_of, tokens_of  # noqa: E402

from penstock.backends.cuda.bind import bind  # noqa: E402
from penstock.interface.executor import Limits, PromptRows, Sampling  # noqa: E402
from penstock.interface.sampler import NewSequence  # noqa: E402
from penstock.plan.fuse import fuse  # noqa: E402
from penstock.plan.lower import lower  # noqa: E402
from penstock.quant.choice import choose  # noqa: E402
from penstock.sampling.params import SamplingParams  # noqa: E402

LIMITS = Limits(num_blocks=8, max_tokens=16, max_logit_rows=16, max_sequences=4, threads=1)


@contextmanager
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def storages(device: Any) -> dict[int, Any]:
    found = [each for each in gc.get_objects() if type(each) is torch.Tensor]
    return {id(each): each for each in found if each.device.type == device.type}


@pytest.mark.thinned(4)
@pytest.mark.parametrize("quantized", [False, True])
@pytest.mark.parametrize("way", ["logits", "sampled"])
def test_no_tensor_outlives_an_executor(way: str, quantized: bool, device: Any) -> None:
    spec = make_spec(bias=True, qk_norm=True, tie=False)
    schemes = choose("int8" if quantized else "none", None, True)
    plan = fuse(lower(spec, "bfloat16", quantization=schemes))
    with no_collector():
        before = storages(device)
        executor = bind(plan, dummy_weights(spec, 3, "bfloat16"), LIMITS, device)
        sampler = executor.sampler
        step = step_of([Chunk(tokens_of(1, 8), 0, 8, [3], rows=[6, 7])])
        if way == "logits":
            result = executor.run(step)
            assert result.logits.shape == (2, 211)
            del result  # what it fetched is the host's
        else:
            params = SamplingParams(temperature=0.5, presence_penalty=1.0, top_p=0.5)
            states = [sampler.state(NewSequence(params, 1, [1], 211))]
            executor.submit(step, Sampling([1], states, prompts=[PromptRows(0, [3], 2)])).wait()
            del states
        mine = storages(device).items() - before.items()
        refs = [weakref.ref(tensor) for _, tensor in mine]
        assert len(refs) > 50
        del mine, before
        executor.close()
        # The thread that steps the engine may still hold the executor and its sampler.
        alive = [ref() for ref in refs if ref() is not None]
        shapes = [(tuple(t.shape), t.dtype) for t in alive if t is not None]
        assert shapes == []
        with pytest.raises(RuntimeError, match="closed"):
            executor.run(step)
        executor.close()
