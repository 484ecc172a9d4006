"""Launches steps of many sizes on no device, and prints which of them need a kernel that warming up
did not make. Run as a program, with the interpreter off: ``test_warm_up.py`` does.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from support.tiny_plans import make_spec

from penstock.backends.cuda.bind import assemble
from penstock.backends.cuda.executor import CudaExecutor
from penstock.backends.cuda.step import padding
from penstock.backends.cuda.variants import recording
from penstock.cache.geometry import BLOCK_SIZE
from penstock.interface.adapters import AdapterSlots
from penstock.interface.executor import Limits, PromptRows, Sampling
from penstock.interface.sampler import NewSequence
from penstock.interface.step import KvTables, StepInput
from penstock.models.spec import DType, ExpertsSpec, ModelSpec
from penstock.plan.adapt import adapt
from penstock.plan.fuse import fuse
from penstock.plan.lower import lower
from penstock.quant.choice import choose
from penstock.sampling.params import SamplingParams
from penstock.weights.model_folder import load_model_spec

CONFIGS = Path(__file__).parents[3] / "benchmarks" / "configs"
PARAMS = (
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=0.5),
    SamplingParams(temperature=0.0, logprobs=3),
    SamplingParams(top_k=5),
    SamplingParams(top_p=0.5, logprobs=0),
    SamplingParams(frequency_penalty=0.5, logit_bias={3: 1.0}, seed=3),
    SamplingParams(temperature=0.0, min_tokens=3, ignore_eos=False),
)


def model(name: str) -> ModelSpec:
    """A layer of a published shape, or a tiny model whose sizes 16 does not divide."""
    if name == "tiny":
        return make_spec(bias=True, qk_norm=True, window=33, tie=False)
    spec = load_model_spec(CONFIGS / name)
    # The last layer computes selected rows alone, so that of experts there are others, too.
    mixture = isinstance(spec.layers[0].mlp, ExpertsSpec)
    return replace(spec, layers=spec.layers[: 2 if mixture else 1])


def prompt(tokens: int, rows: int, **changes: Any) -> StepInput:
    """A prompt of so many tokens, of which the first have logits."""
    ids = np.arange(tokens, dtype=np.int32)
    blocks = np.arange(-(-tokens // BLOCK_SIZE), dtype=np.int32)
    return StepInput(
        token_ids=np.zeros(tokens, np.int32),
        positions=changes.pop("positions", ids),
        groups=(KvTables(ids, np.array([0, len(blocks)], np.int32), blocks),),
        query_starts=np.array([0, tokens], np.int32),
        context_lens=np.array([tokens], np.int32),
        logit_rows=ids[:rows],
        block_copies=changes.pop("block_copies", np.zeros((0, 2), np.int32)),
        **changes,
    )


def steps(limits: Limits) -> Iterator[StepInput]:
    """Steps of many sizes, on and beside those at which tiles change, with all they may hold."""
    most, logits = limits.max_tokens, limits.max_logit_rows
    sizes = {n + more for n in range(0, most + 1, 48) for more in (-1, 0, 1)}
    for tokens in sorted(n for n in sizes if 1 <= n <= most):
        for rows in {1, min(tokens, logits)}:
            yield prompt(tokens, rows)
    yield prompt(40, 3, block_copies=np.ones((7, 2), np.int32))
    yield prompt(40, 3, hidden_rows=np.array([5, 9], np.int32))
    if limits.trees:
        parents, positions = np.array([-1, 0, 0, 1], np.int32), np.array([0, 1, 1, 2], np.int32)
        for moves in (0, 1, 3):
            moved = np.ones((moves, 2), np.int32)
            yield prompt(4, 4, positions=positions, tree_parents=parents, slot_moves=moved)


def sample(executor: CudaExecutor, step: StepInput, generator: np.random.Generator) -> None:
    """Launch the step and sample some of its rows, in all ways there are; tell of others."""
    sampler = executor.sampler
    vocabulary = sampler._sizes.vocab
    rows = len(step.logit_rows)
    count = min(int(generator.integers(1, 5)), rows, sampler._sizes.rows)
    chosen = generator.choice(len(PARAMS), count)
    states = [sampler.state(NewSequence(PARAMS[i], 1, [1, 2], vocabulary, [5])) for i in chosen]
    first = int(generator.integers(0, rows))
    prompts = [PromptRows(first, [1] * min(3, rows - first), 2)]
    if executor._chosen is not None:
        step = replace(step, token_ids=np.full(step.num_tokens, -1, np.int32))
    executor.submit(step, Sampling(list(range(count)), states, prompts=prompts))


def unforeseen(
    name: str, dtype: DType, quantization: Sequence[Any], kv: Any, capability: tuple[int, int]
) -> dict[str, list[str]]:
    """Kernels that steps compile after the engine was warmed up, each with the sizes of steps.

    Behind ``+`` the name may have the rank of adapters, of which every step has one."""
    name, _, rank = name.partition("+")
    spec = model(name)
    scheme, group, activations = quantization
    schemes = choose(scheme, group, True, activations=activations, window_columns=32)
    plan = fuse(lower(spec, dtype, quantization=schemes, kv_dtype=kv, half=True))
    if rank:
        plan = adapt(plan, AdapterSlots(3, int(rank)))
    limits = Limits(
        num_blocks=64,
        max_tokens=min(1792, spec.max_positions),
        max_logit_rows=500,
        max_sequences=8,
        threads=1,
        rows_per_sequence=40,
        trees=name != "llama-3.2-1b",
    )
    generator = np.random.default_rng(0)
    found: dict[str, list[str]] = {}
    with recording(capability) as made:
        executor, _ = assemble(plan, limits, torch.device("meta"), capability)
        executor.warm_up(limits.trees)
        assert len(made) > 20
        assert executor._program is not None
        for bucket in executor._buckets:
            known = set(made)
            executor._program.run(executor._write_padded(padding(0, 0), bucket))
            for key in set(made) - known:
                found.setdefault(str(made[key]), []).append(f"captured: {tuple(bucket)}")
        for step in steps(limits):
            if rank:
                step = replace(step, adapters=np.array([1], np.int32))
            known = set(made)
            if len(step.hidden_rows):
                executor._launch(step)
            else:
                sample(executor, step, generator)
            for key in set(made) - known:
                size = f"{step.num_tokens} tokens, {len(step.logit_rows)} logits"
                found.setdefault(str(made[key]), []).append(size)
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", type=json.loads)
    for case in parser.parse_args().cases:
        name, dtype, quantization, kv, capability = case
        print(json.dumps(unforeseen(name, dtype, quantization, kv, tuple(capability))), flush=True)
