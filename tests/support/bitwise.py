"""Requests whose outputs are compared with ``==``, floats and all, and models that answer them.

A row never depends on its neighbours: what an engine says of a request alone is what any engine of
the same model says of it in company, in other steps, from cached prefixes, on other threads.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from penstock import LLM, RequestOutput, SamplingParams
from penstock.cache.geometry import BLOCK_SIZE
from penstock.config import EngineConfig
from penstock.engine.loader import EnginePlan, plan_engine
from penstock.plan.kv_groups import KvGroups
from support.needs import require_native

Bits = list[tuple[tuple[int, ...], Any]]
"""Everything that a request reports: of each of its sequences the tokens and log-probabilities."""


@dataclass(frozen=True)
class Served:
    """A model and the options with which engines of it start."""

    folder: Path
    options: Mapping[str, Any] = field(default_factory=dict)

    def start(self, **more: Any) -> LLM:
        """Start an engine, of one thread on the CPU and of weights at random unless told
        otherwise; ``more`` overrides options."""
        options = {"backend": "cpu", "load_format": "dummy"} | dict(self.options) | more
        if options["backend"] == "cpu":
            require_native()
            options = {"threads": 1} | options
        else:
            options.pop("threads", None)  # it has one
        return LLM(model=str(self.folder), **options)

    def planned(self, **more: Any) -> EnginePlan:
        """What such an engine would be."""
        options = {"backend": "cpu", "load_format": "dummy"} | dict(self.options) | more
        return plan_engine(EngineConfig(model=str(self.folder), **options))

    def kv_groups(self) -> KvGroups:
        """How the layers share the KV cache, and the bytes of a block of it."""
        return self.planned().plan.kv_groups


def served(folder: Path, config: Mapping[str, Any], **options: Any) -> Served:
    """A model of which there is a configuration alone."""
    (folder / "config.json").write_text(json.dumps(dict(config)))
    return Served(folder, options)


def prompt(seed: int, length: int, vocabulary: int = 300) -> list[int]:
    """Token ids at random, but for 0, which ends a text in these tests' configurations."""
    return [int(t) for t in np.random.default_rng(seed).integers(1, vocabulary, length)]


def run(
    llm: LLM, prompts: Sequence[list[int]], params: SamplingParams | Sequence[SamplingParams]
) -> list[Bits]:
    """Run all prompts at once, with the same parameters or each with its own."""
    each = params if isinstance(params, SamplingParams) else list(params)
    return [bits(o) for o in llm.generate([{"prompt_token_ids": p} for p in prompts], each)]


def bits(output: RequestOutput) -> Bits:
    return [(tuple(c.token_ids), c.logprobs) for c in output.outputs]


@dataclass(frozen=True)
class Requests:
    """Prompts, and the parameters of each."""

    prompts: tuple[list[int], ...]
    params: tuple[SamplingParams, ...]

    @classmethod
    def product(cls, prompts: Iterable[list[int]], *params: SamplingParams) -> Requests:
        """Each prompt with each of ``params``."""
        pairs = [(p, s) for p in prompts for s in params]
        return cls(tuple(p for p, _ in pairs), tuple(s for _, s in pairs))

    def alone(self, llm: LLM) -> list[Bits]:
        """What is said of each request when nothing else runs."""
        pairs = zip(self.prompts, self.params, strict=True)
        return [run(llm, [p], s)[0] for p, s in pairs]

    def together(self, llm: LLM) -> list[Bits]:
        """What is said of each when all run."""
        return run(llm, self.prompts, self.params)

    @property
    def cached_tokens(self) -> int:
        """Tokens that are found in the prefix cache when all have run before."""
        return sum((len(p) - 1) // BLOCK_SIZE * BLOCK_SIZE for p in self.prompts)


def growing(count: int, max_tokens: int) -> Requests:
    """Requests that begin in one or two blocks and grow to several, half of them drawn."""
    return Requests(
        tuple(prompt(50 + i, 20 + i) for i in range(count)),
        tuple(
            SamplingParams(
                temperature=i % 2, seed=i, max_tokens=max_tokens, ignore_eos=True, logprobs=2
            )
            for i in range(count)
        ),
    )
