"""Chooses the draft model and checks, before any weight is read, whether it fits the target."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.demo_model import (
    demo_model_path,
    draft_model_path,
    eagle_head_path,
    medusa_heads_path,
)
from penstock.dtypes import WindowColumns
from penstock.errors import ConfigError, TokenizerError
from penstock.gguf.metadata import read_metadata
from penstock.gguf.names import is_gguf
from penstock.memory_budget import Served
from penstock.models.json_objects import read_json_object
from penstock.models.spec import ModelSpec
from penstock.plan.fuse import fuse
from penstock.plan.lower import lower
from penstock.plan.plan import Plan
from penstock.quant.choice import choose
from penstock.speculate.draft_heads_choice import (
    draft_heads_spec,
    refuse_draft_heads,
    stretched,
)
from penstock.speculative_config import DraftModel, Eagle, Medusa, QuantizedSelf, SpeculativeConfig
from penstock.weights.hub import resolve_model_folder
from penstock.weights.model_folder import load_model_spec

if TYPE_CHECKING:
    from penstock.config import EngineConfig
    from penstock.resolved_config import ResolvedConfig

_METHODS = {DraftModel: "draft", Medusa: "medusa", Eagle: "eagle"}
_FEW_WEIGHTS = 8 << 20
"""Bytes of weights that stay in one core's cache. A smaller model gains nothing from threads."""


def draft_folder(config: SpeculativeConfig | None, target: Path) -> Path | None:
    """Return the folder of the draft model or heads; None if the method has none.

    Raises ConfigError or ModelError.
    """
    if isinstance(config, QuantizedSelf):
        return target
    if not isinstance(config, DraftModel | Medusa | Eagle):
        return None
    if config.model:
        return resolve_model_folder(config.model, heads=not isinstance(config, DraftModel))
    own = {DraftModel: draft_model_path, Medusa: medusa_heads_path, Eagle: eagle_head_path}
    if target == demo_model_path():
        return own[type(config)]()
    what = (
        f"a checkpoint with the tokenizer of {target.name}"
        if isinstance(config, DraftModel)
        else f"heads that were trained for {target.name}"
    )
    raise ConfigError(
        f"speculative {_METHODS[type(config)]} needs the option 'model', {what}, unless that is "
        "the demo model"
    )


def draft_spec(config: EngineConfig, folder: Path, target: ModelSpec, tokenizer: Path) -> ModelSpec:
    """Return the spec of the draft model or heads in ``folder``.

    Raises ConfigError if they cannot draft for ``target``, and ModelError or WeightError for files
    that cannot be read.
    """
    dummy = config.load_format == "dummy"
    if isinstance(config.speculative, Medusa | Eagle):
        return draft_heads_spec(config.speculative, folder, target, dummy)
    refuse_draft_heads(folder, dummy)
    itself = isinstance(config.speculative, QuantizedSelf)
    spec = target if itself else load_model_spec(folder)
    if spec.vocab_size != target.vocab_size:
        raise ConfigError(
            f"the draft {folder.name} has a vocabulary of {spec.vocab_size} tokens and the model "
            f"one of {target.vocab_size}; a draft must have the model's own"
        )
    own, theirs = _vocabulary(folder), _vocabulary(tokenizer)
    alike = is_gguf(folder) == is_gguf(tokenizer)  # others are spelled otherwise
    if alike and own is not None and theirs is not None and own != theirs:
        raise ConfigError(
            f"the draft {folder.name} has another tokenizer than the model: the same ids stand for "
            "other tokens; a draft must have the model's own"
        )
    return spec


def reaching(
    asked: SpeculativeConfig | None, spec: ModelSpec, positions: int, folder: Path
) -> tuple[ModelSpec, tuple[str, ...]]:
    """Return the draft with at least ``positions`` positions, and notes for the user.

    Raises ConfigError if it has too few and is no head, which may be given more.
    """
    if isinstance(asked, Medusa | Eagle):
        return stretched(spec, positions, folder)
    if spec.max_positions < positions:
        raise ConfigError(
            f"the draft {folder.name} has {spec.max_positions} positions and requests may come to "
            f"{positions} tokens; set max_model_len to at most {spec.max_positions}, or take a "
            "draft with more"
        )
    return spec, ()


def draft_engine_config(
    config: EngineConfig, resolved: ResolvedConfig, folder: Path, plan: Plan, kv_bytes: int
) -> EngineConfig:
    """Return the configuration of the draft's engine, which has this ``plan``.

    Its steps have the target's limits, and its KV cache has ``kv_bytes``. Raises ConfigError if the
    draft would be no faster.
    """
    spec = plan.spec
    asked = config.speculative
    if isinstance(asked, QuantizedSelf) and asked.quantization == resolved.quantization:
        raise ConfigError(
            f"speculative self would draft in {asked.quantization}, which the model is in itself: "
            "nothing would be faster; leave it out, or take a smaller model as draft"
        )
    changes: dict[str, Any] = {
        "model": str(folder),
        "revision": None,
        "tokenizer": None,
        "served_model_name": None,
        "backend": resolved.backend,
        "max_model_len": resolved.max_model_len,
        "max_input_len": None,
        "max_output_len": None,
        "kv_cache_bytes": kv_bytes,
        "kv_disk": None,
        "kv_disk_key_file": None,
        "kv_host_bytes": None,
        "max_num_seqs": resolved.max_num_seqs,
        "max_num_batched_tokens": _step_tokens(
            config, spec, resolved.max_num_seqs, resolved.max_num_batched_tokens
        ),
        "speculative": None,
        "profile": None,
        # Of a target that several processes share, the engine's own drafts alone, on the threads of
        # all that are on its machine: they wait.
        "tensor_parallel": 1,
        "pipeline_parallel": 1,
        "pipeline_stages": None,
        "pipeline_secret_file": None,
        "lora_modules": (),  # a draft without the adapter may be wrong, and is then rejected
        "max_loras": None,
        "max_lora_rank": None,
    }
    changes |= _quantization(config, spec)
    if resolved.threads > 1 and plan.num_parameters * 2 <= _FEW_WEIGHTS:
        changes |= {"threads": 1}
    return msgspec.structs.replace(config, **changes)


def draft_logit_rows(max_sequences: int, max_tokens: int) -> int:
    """Return the maximum number of rows with logits in a step of a draft model.

    It needs one for each sequence. On a GPU every row of a step that is replayed from a CUDA graph
    has logits, and a sequence has two rows after its draft was accepted as a whole.
    """
    return min(2 * max_sequences, max_tokens)


def served_draft(
    config: EngineConfig,
    target: Served,
    spec: ModelSpec,
    block_bytes: int,
    *,
    half: bool,
    quantize_activations: bool,
    window_columns: WindowColumns,
) -> Served:
    """Return what memory planning must know of the draft of ``target``.

    ``block_bytes`` is the size of a block of the draft's KV cache. ``half`` is as in
    :func:`~penstock.plan.lower.lower`, and ``quantize_activations`` and ``window_columns`` the
    backend's defaults.
    """
    options = msgspec.structs.replace(config, **_quantization(config, spec))
    activations = options.quantize_activations
    dtype = spec.dtype if config.dtype == "auto" else config.dtype
    tokens = _step_tokens(config, spec, target.max_sequences, target.max_tokens)
    max_len = min(target.max_len, spec.max_positions)
    schemes = choose(
        options.quantization,
        options.quantization_group,
        options.quantize_head,
        zero_points=options.quantization_zero_points,
        activations=quantize_activations if activations is None else activations,
        window_columns=window_columns,
    )
    plan = fuse(lower(spec, dtype, max_len, schemes, config.kv_dtype(dtype), half=half))
    rows = draft_logit_rows(target.max_sequences, tokens) if plan.feature_size == 0 else tokens
    return replace(
        target,
        plan=plan,
        max_len=max_len,
        max_tokens=tokens,
        max_logit_rows=rows,
        block_bytes=block_bytes,
        state_bytes=0,
    )


def _step_tokens(config: EngineConfig, spec: ModelSpec, max_sequences: int, max_tokens: int) -> int:
    """Return the maximum tokens of a step of the draft, for ``max_tokens`` of the target."""
    if not spec.layers:  # reads one row of each sequence
        return max_sequences
    if isinstance(config.speculative, Eagle):  # every sequence drafts on so many tokens at once
        return max(max_tokens, max_sequences * config.speculative.width)
    return max_tokens


def _quantization(config: EngineConfig, spec: ModelSpec) -> dict[str, Any]:
    """Return the options of quantization in which the draft ``spec`` differs from its target."""
    asked = config.speculative
    changes: dict[str, Any] = {}
    if isinstance(asked, QuantizedSelf):
        changes |= {"quantization": asked.quantization, "quantization_group": None}
        changes |= {"quantization_zero_points": False}
    elif config.quantization == "none" or not _fits_scheme(config) or spec.quantized is not None:
        changes |= {"quantization": "none", "quantization_group": None}
        changes |= {"quantization_zero_points": False, "quantize_activations": None}
    if isinstance(asked, Medusa | Eagle) and (
        asked.quantization != "auto" or changes.get("quantization") == "none"
    ):
        bits = "int8" if asked.quantization == "auto" else asked.quantization
        changes |= {"quantization": bits, "quantization_group": None}
        changes |= {"quantization_zero_points": False}
        if asked.quantization == "auto":
            changes |= {"quantize_head": True}
        if bits == "none":
            changes |= {"quantize_activations": None}
    return changes


def _fits_scheme(config: EngineConfig) -> bool:
    """Return whether the target's quantization options apply to another model's columns."""
    return config.quantization_group is None and not config.quantization_zero_points


def _vocabulary(folder: Path) -> object:
    """Return the vocabulary in the folder's tokenizer.json, or in a GGUF file; None if it has
    none."""
    if is_gguf(folder):
        return read_metadata(folder, TokenizerError).get("tokenizer.ggml.tokens")
    path = folder / "tokenizer.json"
    if not os.path.lexists(path):
        return None
    content = read_json_object(path, TokenizerError)
    model = content.get("model")
    if not isinstance(model, dict):
        raise TokenizerError(f"{path} has no model; download it again")
    return model.get("vocab"), content.get("added_tokens")
