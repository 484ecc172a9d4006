"""Ranks on GPUs: NCCL within graphs, and, where there are two GPUs, whole engines."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
from support.needs import Need, lacking
from support.waiting import descendants_of


@pytest.fixture
def gpus(device: Any) -> int:
    import torch

    count: int = torch.cuda.device_count()
    if count < 2:
        lacking(Need.GPU, "a second one, for the second rank")
    return count


def test_gathers_are_captured_and_replayed(device: Any) -> None:
    """A group of one rank: what is captured are NCCL's calls, and copies."""
    import torch

    from penstock.backends.cuda.capability import capability_of
    from penstock.backends.cuda.distributed_group import join
    from penstock.interface.collective import thread_ranks

    (rank,) = thread_ranks(1)
    torch.cuda.set_device(device)
    group = join(rank, device, capability_of(device))
    part, everything, first = (
        torch.zeros(4096, dtype=torch.uint8, device=device) for _ in range(3)
    )
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        group.all_gather(everything, part)
        group.gather_to_first(first, part)
    for number in (3, 250):
        part.fill_(number)
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(everything, part)
        assert torch.equal(first, part)
    group.close()


@pytest.mark.parametrize("quantization", ["none", "int8", "int4"])
@pytest.mark.parametrize("speculative", [None, "ngram:min_match=1,adaptive=false"])
def test_two_ranks_say_what_one_gpu_says(quantization: Any, speculative: Any, gpus: int) -> None:
    from penstock import LLM, SamplingParams

    prompts = [[3 + i, 5, 7 * i + 11] * (1 + 7 * i) for i in range(8)]
    params = [
        SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, logprobs=3),
        SamplingParams(temperature=1.0, seed=3, max_tokens=24, ignore_eos=True, logprobs=3),
    ] * 4

    def said(**options: Any) -> list[Any]:
        with LLM(backend="cuda", quantization=quantization, **options) as llm:
            requests = [{"prompt_token_ids": prompt} for prompt in prompts]
            outputs = [output.outputs[0] for output in llm.generate(requests, params)]
            llm.check_integrity()
        return [(list(each.token_ids), each.logprobs) for each in outputs]

    assert said(tensor_parallel=2, speculative=speculative) == said()


def test_a_rank_that_is_killed_ends_the_engine_with_its_cause(gpus: int) -> None:
    from penstock import LLM, SamplingParams
    from penstock.errors import EngineDeadError

    before = descendants_of(os.getpid())
    with LLM(backend="cuda", tensor_parallel=2) as llm:
        (pid,) = (each for each in descendants_of(os.getpid()) if each not in before)
        params = SamplingParams(temperature=0, max_tokens=1000, ignore_eos=True)
        stream = llm.stream(["import os"], params)
        next(stream)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(EngineDeadError, match=rf"rank 1 \(pid {pid}\) was ended by SIGKILL"):
            for _ in stream:
                pass
