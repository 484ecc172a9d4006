"""What the options are decided from, and the checks that need nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias, get_args

from penstock.cache.geometry import BLOCK_SIZE, MOST_BLOCKS, KvDType
from penstock.config import EngineConfig
from penstock.dtypes import KvCacheDTypeOption
from penstock.errors import ConfigError
from penstock.hardware import Hardware
from penstock.models.draft_heads import taps_of
from penstock.models.gguf.blocks import GgufTypes
from penstock.models.quantized_modules import QuantizedModules
from penstock.models.spec import DType, ModelSpec
from penstock.plan.plan import Plan

Reasons: TypeAlias = Mapping[str, str]
"""Why each option has its value, by the option's name, in the order in which they are shown."""


@dataclass(frozen=True)
class ModelTypes:
    """The types of a model's weights in memory and of its KV cache."""

    weights: DType
    kv_cache: KvDType


@dataclass(frozen=True)
class Inputs:
    """What the options are decided from: what the user asks for, the machine, and the models."""

    config: EngineConfig
    hardware: Hardware
    spec: ModelSpec
    draft: ModelSpec | None
    """The model or the heads that draft, if there are any. Their KV cache shares the budget, block
    for block."""
    drafts: bool
    """Whether this model drafts for another, one token of each sequence a step."""
    plan: Plan | None
    """The model's fused plan where it is known already: that of a draft, once its target was
    resolved."""
    given_taps: tuple[int, ...] | None = None
    """The taps, where what reads them is another process's."""

    @property
    def taps(self) -> tuple[int, ...]:
        """The layers whose inputs a head that drafts reads."""
        if self.given_taps is not None:
            return self.given_taps
        return taps_of(self.draft)

    @property
    def types(self) -> ModelTypes:
        return model_types(self.config, self.spec)

    @property
    def trees(self) -> bool:
        """Whether steps may hold draft trees."""
        speculative = self.config.speculative
        return speculative is not None and speculative.drafts_trees


def model_types(config: EngineConfig, spec: ModelSpec) -> ModelTypes:
    """Return the types that ``config`` gives the model, which may be a draft."""
    weights = spec.dtype if config.dtype == "auto" else config.dtype
    return ModelTypes(weights, config.kv_dtype(weights))


def reason(asked: object, otherwise: str) -> str:
    """Return why an option has its value: the user's choice, or ``otherwise`` where left open."""
    return otherwise if asked in (None, "auto") else "as asked"


def check_options(inputs: Inputs) -> None:
    """Raise ConfigError for values that no machine and no model could run with."""
    config = inputs.config
    # Each running sequence has a block of its own, and each token of a step a slot.
    slots = MOST_BLOCKS * BLOCK_SIZE
    for name, most in (
        ("max_num_seqs", MOST_BLOCKS),
        ("max_num_batched_tokens", slots),
        ("max_model_len", None),  # the model's positions bound it
    ):
        value = getattr(config, name)
        if value is not None and value < 1:
            raise ConfigError(f"{name} must be at least 1, not {value}")
        if value is not None and most is not None and value > most:
            raise ConfigError(f"{name} must be at most {most:,}, not {value:,}")
    if config.kv_cache_dtype not in get_args(KvCacheDTypeOption):
        raise ConfigError(
            "kv_cache_dtype must be auto, int4, k8v4, int8, fp8, float32, bfloat16 or float16, "
            f"not {config.kv_cache_dtype!r}"
        )
    if config.speculative is not None:
        _check_states(inputs)
    own = inputs.spec.quantized
    kept = own is not None and bool(own.schemes)
    if isinstance(own, QuantizedModules):
        kept = kept or own.in_whole_blocks
    quantized = config.quantization != "none" or kept
    if config.quantize_activations is not None and not quantized:
        raise ConfigError(
            "quantize_activations has no effect without quantization; set quantization to int8 or "
            "int4, or leave it out"
        )

    its_own = not inputs.drafts and inputs.spec.published == "model"
    if its_own and not config.quantize_head and config.quantization == "none":
        raise ConfigError(
            "quantize_head false (--no-quantize-head) has no effect without quantization: the "
            "output matrix stays as it is; leave it out"
        )
    if config.load_format == "dummy" and isinstance(own, GgufTypes):
        raise ConfigError(
            "there are no dummy weights in the blocks of GGUF files; leave --load-format out, or "
            "take a folder with a config.json"
        )


def _check_states(inputs: Inputs) -> None:
    """Raise ConfigError where the model that drafts keeps states, or drafts are trees and the model
    they are for keeps states."""
    if inputs.draft is not None and inputs.draft.keeps_states:
        raise ConfigError(
            f"the draft model cannot be {inputs.draft.architecture}: its layers keep a state of "
            "each sequence, which those of a draft model may not yet; leave speculative out, or "
            "choose ngram, or a draft model of attention alone"
        )
    if inputs.spec.keeps_states and inputs.trees:
        raise ConfigError(
            f"{inputs.spec.architecture} has layers that keep a state of each sequence, which "
            "follows one line of tokens, not a tree of drafts; choose a speculative method that "
            "drafts chains (ngram, draft, or eagle with width=1)"
        )
