"""Penstock serves large language models.

    from penstock import LLM, SamplingParams

    llm = LLM("path/to/checkpoint")
    for output in llm.generate(["def fib(n):"], SamplingParams(temperature=0, max_tokens=64)):
        print(output.outputs[0].text)

Importing this package is nearly free; each public name is loaded when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.api import LLM
    from penstock.config import EngineConfig
    from penstock.engine.async_llm import AsyncLLM
    from penstock.engine.output import CompletionOutput, RequestOutput
    from penstock.errors import PenstockError, RequestError
    from penstock.grammar.spec import GrammarSpec
    from penstock.pooling.output import EmbeddingOutput
    from penstock.pooling.params import PoolingParams
    from penstock.sampling.params import SamplingParams

__version__ = "0.1.0"

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
    "AsyncLLM": "penstock.engine.async_llm",
    "CompletionOutput": "penstock.engine.output",
    "EmbeddingOutput": "penstock.pooling.output",
    "EngineConfig": "penstock.config",
    "GrammarSpec": "penstock.grammar.spec",
    "PenstockError": "penstock.errors",
    "PoolingParams": "penstock.pooling.params",
    "RequestError": "penstock.errors",
    "RequestOutput": "penstock.engine.output",
    "SamplingParams": "penstock.sampling.params",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'penstock' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def demo_model_path() -> Path:
    """The folder of the small code model that ships with Penstock."""
    return Path(__file__).parent / "demo" / "model"


def draft_model_path() -> Path:
    """The folder of the demo model's smaller sibling: same tokenizer, a ninth of the weights."""
    return Path(__file__).parent / "demo" / "draft"


def medusa_heads_path() -> Path:
    """The folder of Medusa heads for the demo model."""
    return Path(__file__).parent / "demo" / "medusa"


def eagle_head_path() -> Path:
    """The folder of an EAGLE head for the demo model."""
    return Path(__file__).parent / "demo" / "eagle"
