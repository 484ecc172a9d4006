"""Penstock serves large language models.

    from penstock import LLM, SamplingParams

    llm = LLM("path/to/checkpoint")
    for output in llm.generate(["def fib(n):"], SamplingParams(temperature=0, max_tokens=64)):
        print(output.outputs[0].text)

Importing this package is nearly free; each public name is loaded when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from penstock.demo_model import (
    demo_model_path,
    draft_model_path,
    eagle_head_path,
    medusa_heads_path,
)
from penstock.version import __version__

if TYPE_CHECKING:
    from penstock.api import LLM
    from penstock.config import EngineConfig
    from penstock.errors import PenstockError, RequestError
    from penstock.frontend.async_llm import AsyncLLM
    from penstock.frontend.outputs import CompletionOutput, RequestOutput
    from penstock.grammar.spec import GrammarSpec
    from penstock.pooling.output import EmbeddingOutput
    from penstock.pooling.params import PoolingParams
    from penstock.sampling.params import SamplingParams

__all__ = [
    "LLM",
    "AsyncLLM",
    "CompletionOutput",
    "EmbeddingOutput",
    "EngineConfig",
    "GrammarSpec",
    "PenstockError",
    "PoolingParams",
    "RequestError",
    "RequestOutput",
    "SamplingParams",
    "__version__",
    "demo_model_path",
    "draft_model_path",
    "eagle_head_path",
    "medusa_heads_path",
]

_HOMES = {
    "LLM": "penstock.api",
    "AsyncLLM": "penstock.frontend.async_llm",
    "CompletionOutput": "penstock.frontend.outputs",
    "EmbeddingOutput": "penstock.pooling.output",
    "EngineConfig": "penstock.config",
    "GrammarSpec": "penstock.grammar.spec",
    "PenstockError": "penstock.errors",
    "PoolingParams": "penstock.pooling.params",
    "RequestError": "penstock.errors",
    "RequestOutput": "penstock.frontend.outputs",
    "SamplingParams": "penstock.sampling.params",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'penstock' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
