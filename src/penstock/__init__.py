"""Penstock serves large language models.

    from penstock import LLM, SamplingParams

    llm = LLM("path/to/checkpoint")
    for output in llm.generate(["def fib(n):"], SamplingParams(temperature=0, max_tokens=64)):
        print(output.outputs[0].text)

Importing this package is nearly free; each public name is loaded when it is first used.
"""

from __future__ import annotations

from importlib import import_module

from penstock.version import __version__

TYPE_CHECKING = False  # that of typing, which takes longer to import than the rest of the start
if TYPE_CHECKING:
    from penstock.api import LLM
    from penstock.config import EngineConfig
    from penstock.demo_model import (
        demo_model_path,
        draft_model_path,
        eagle_head_path,
        medusa_heads_path,
    )
    from penstock.errors import (
        ArtifactError,
        ConfigError,
        ContextLengthError,
        EngineDeadError,
        ModelError,
        OverloadedError,
        PenstockError,
        PositionsError,
        RequestError,
        StoreError,
        TokenizerError,
        UnavailableError,
        WeightError,
    )
    from penstock.frontend.async_llm import AsyncLLM
    from penstock.frontend.outputs import CompletionOutput, RequestOutput
    from penstock.grammar.spec import GrammarSpec
    from penstock.grammar.structured_outputs import GuidedDecodingParams, StructuredOutputsParams
    from penstock.llm_adapters import LoRARequest
    from penstock.llm_inputs import TextPrompt, TokensPrompt
    from penstock.pooling.output import ClassificationOutput, EmbeddingOutput, ScoringOutput
    from penstock.pooling.params import PoolingParams
    from penstock.sampling.beam_params import BeamSearchParams
    from penstock.sampling.beam_search import BeamSearch
    from penstock.sampling.params import SamplingParams

__all__ = [
    "LLM",
    "ArtifactError",
    "AsyncLLM",
    "BeamSearch",
    "BeamSearchParams",
    "ClassificationOutput",
    "CompletionOutput",
    "ConfigError",
    "ContextLengthError",
    "EmbeddingOutput",
    "EngineConfig",
    "EngineDeadError",
    "GrammarSpec",
    "GuidedDecodingParams",
    "LoRARequest",
    "ModelError",
    "OverloadedError",
    "PenstockError",
    "PoolingParams",
    "PositionsError",
    "RequestError",
    "RequestOutput",
    "SamplingParams",
    "ScoringOutput",
    "StoreError",
    "StructuredOutputsParams",
    "TextPrompt",
    "TokenizerError",
    "TokensPrompt",
    "UnavailableError",
    "WeightError",
    "__version__",
    "demo_model_path",
    "draft_model_path",
    "eagle_head_path",
    "medusa_heads_path",
]

_HOMES = {
    "ArtifactError": "penstock.errors",
    "AsyncLLM": "penstock.frontend.async_llm",
    "BeamSearch": "penstock.sampling.beam_search",
    "BeamSearchParams": "penstock.sampling.beam_params",
    "ClassificationOutput": "penstock.pooling.output",
    "CompletionOutput": "penstock.frontend.outputs",
    "ConfigError": "penstock.errors",
    "ContextLengthError": "penstock.errors",
    "EmbeddingOutput": "penstock.pooling.output",
    "EngineConfig": "penstock.config",
    "EngineDeadError": "penstock.errors",
    "GrammarSpec": "penstock.grammar.spec",
    "GuidedDecodingParams": "penstock.grammar.structured_outputs",
    "LLM": "penstock.api",
    "LoRARequest": "penstock.llm_adapters",
    "ModelError": "penstock.errors",
    "OverloadedError": "penstock.errors",
    "PenstockError": "penstock.errors",
    "PoolingParams": "penstock.pooling.params",
    "PositionsError": "penstock.errors",
    "RequestError": "penstock.errors",
    "RequestOutput": "penstock.frontend.outputs",
    "SamplingParams": "penstock.sampling.params",
    "ScoringOutput": "penstock.pooling.output",
    "StructuredOutputsParams": "penstock.grammar.structured_outputs",
    "TextPrompt": "penstock.llm_inputs",
    "StoreError": "penstock.errors",
    "TokenizerError": "penstock.errors",
    "TokensPrompt": "penstock.llm_inputs",
    "UnavailableError": "penstock.errors",
    "WeightError": "penstock.errors",
    "demo_model_path": "penstock.demo_model",
    "draft_model_path": "penstock.demo_model",
    "eagle_head_path": "penstock.demo_model",
    "medusa_heads_path": "penstock.demo_model",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        from penstock.vllm_names import OF_PACKAGE, no_attribute

        raise no_attribute("module 'penstock'", name, OF_PACKAGE)
    return getattr(import_module(_HOMES[name]), name)
