"""What model, or what heads that draft, a checkpoint's folder holds."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from penstock.errors import ModelError
from penstock.models.draft_heads import DraftHeadsSpec
from penstock.models.draft_heads_config import (
    DraftHeadsKind,
    draft_heads_kind,
    names_heads,
    read_draft_heads,
)
from penstock.models.json_objects import read_json_object
from penstock.models.quantized_modules import QuantizedModules
from penstock.models.reader import ConfigReader
from penstock.models.registry import read_spec
from penstock.models.spec import ModelSpec
from penstock.models.text_part import text_part
from penstock.weights.gguf_spec import load_gguf_spec
from penstock.weights.label_tokens import LabelTokens, by_asked_tokens, by_logit_score
from penstock.weights.model_files import ModelFiles
from penstock.weights.published import open_draft_heads
from penstock.weights.safetensors import stored_dtype, stored_names

_QUANTIZED: Final = "hf_quant_config.json"
"""What Model Optimizer writes in the place of ``quantization_config``, or beside it."""


def load_model_spec(
    model: Path | ModelFiles,
    ignore: Collection[str] = (),
    sampling_defaults: bool = True,
    label_tokens: Sequence[str] = (),
    tokenizer: Path | None = None,
) -> ModelSpec:
    """The model in a checkpoint folder, from ``config.json`` and ``generation_config.json``, or in
    a GGUF file.

    Weights are not read; only where the configuration names no dtype, or is of more than a language
    model, headers of weight files are asked. ``ignore`` names fields of ``config.json`` that are
    passed over though they are not known; without ``sampling_defaults`` those that the model
    recommends are. ``label_tokens``: texts of tokens of ``tokenizer``, by default the model's, by
    which it is to classify. Raises ModelError, and WeightError if such a header is corrupt.
    """
    files = ModelFiles.of(model)
    tokens = LabelTokens(tokenizer or files.path)
    if files.gguf is not None:
        spec = load_gguf_spec(files.gguf, ignore, sampling_defaults)
    else:
        spec = _folder_spec(files.path, ignore, sampling_defaults, tokens)
    return by_asked_tokens(spec, label_tokens, tokens) if label_tokens else spec


def _folder_spec(
    folder: Path, ignore: Collection[str], sampling_defaults: bool, tokens: LabelTokens
) -> ModelSpec:
    path = folder / "config.json"
    if not os.path.lexists(path):
        raise ModelError(
            f"{folder} has no config.json; give a Hugging Face checkpoint folder "
            "(config.json, model.safetensors, tokenizer.json), a GGUF file, or of a hub repository "
            "of GGUF files the quantization behind its name (owner/name:Q4_K_M)"
        )
    config = read_json_object(path, ModelError, infinite=True)
    generation_path = folder / "generation_config.json"
    generation = (
        read_json_object(generation_path, ModelError) if os.path.lexists(generation_path) else None
    )
    beside = folder / _QUANTIZED
    quantization = read_json_object(beside, ModelError) if os.path.lexists(beside) else None
    named = any(config.get(key) is not None for key in ("dtype", "torch_dtype"))
    spec = read_spec(
        config,
        generation=generation,
        quantization=quantization,
        default_dtype=None if named else stored_dtype(folder),
        tensors=() if text_part(config) is None else stored_names(folder),
        ignore=ignore,
        sampling_defaults=sampling_defaults,
        where=str(path),
        token_id=tokens.id,
    )
    return by_logit_score(_unless_floats(spec, folder), folder)


def _unless_floats(spec: ModelSpec, folder: Path) -> ModelSpec:
    """The model without its quantization where the folder has floats though the configuration says
    otherwise, as of gpt-oss that was trained further."""
    own = spec.quantized
    if not isinstance(own, QuantizedModules) or not own.marks:
        return spec
    names = stored_names(folder)
    if not names or any(name.endswith(own.marks) for name in names):
        return spec
    said = ", ".join(own.as_floats)
    note = (
        f"{folder}: quantization_config says {said}, and all weights are stored in floats; they "
        "are read as they are"
    )
    return replace(spec, quantized=None, notes=(*spec.notes, note))


def draft_heads_in(folder: Path, dummy: bool = False) -> DraftHeadsKind | None:
    """Return the kind of draft heads in a folder; None if it is an ordinary model, as far as can be
    seen.

    The kind is found from config.json or, if that fits both, from the names of the weights, unless
    these are ``dummy``. Raises ModelError or WeightError.
    """
    if not os.path.lexists(folder / "config.json"):
        return None
    kind = draft_heads_kind(_config(folder))
    if kind == "either":
        return "eagle" if not dummy and names_heads(open_draft_heads(folder)) else None
    return kind


def load_draft_heads_spec(
    folder: Path, kind: DraftHeadsKind, target: ModelSpec, dummy: bool = False
) -> DraftHeadsSpec:
    """Return the spec of the heads of this kind in ``folder``, which draft for ``target``.

    What config.json leaves open is taken from the shapes of the weights or, if those are ``dummy``,
    from the target. Raises ModelError, naming the field, for what Penstock does not know, and
    WeightError for corrupt weight files.
    """
    shapes = None
    if not dummy:
        found = open_draft_heads(folder)
        shapes = {name: tensor.shape for name, (_, tensor) in found.items()}
    return read_draft_heads(_config(folder), kind, target, shapes)


def _config(folder: Path) -> ConfigReader:
    path = folder / "config.json"
    if not os.path.lexists(path):
        raise ModelError(
            f"{folder} has no config.json; give the folder of published heads (config.json and "
            "model.safetensors, medusa_lm_head.pt or the like)"
        )
    return ConfigReader(read_json_object(path, ModelError), str(path))
