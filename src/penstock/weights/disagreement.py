"""Errors for checkpoints whose tensors and configuration do not agree."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from penstock.errors import WeightError
from penstock.gguf.names import is_gguf
from penstock.interface.source_walks import packed
from penstock.interface.sources import Packed, Source
from penstock.models.gguf.blocks import BlockMatrix
from penstock.models.gptq import Gptq
from penstock.models.quantized import QuantizedFormat
from penstock.weights.tensor_file import Found, TensorFile

_QUANTIZED: Final = (
    ".qweight", ".qzeros", ".scales", ".g_idx", "_scale", "_scale_inv", "_packed", "_scale_2",
    ".absmax", ".SCB",
)  # fmt: skip
_PLAIN: Final = ".weight"
_INSIDE_ANOTHER: Final = ("language_model.", "model.language_model.")


def quantized_names(names: Iterable[str]) -> list[str]:
    """Those names that only tensors of quantized checkpoints have."""
    return [name for name in names if name.endswith(_QUANTIZED)]


def refuse_dense(folder: Path, weight: str, matrix: Packed, found: Found) -> None:
    """Raise WeightError if ``matrix`` of ``weight``, which the configuration says is quantized, is
    there as it was before. Its shape may be one that cannot be quantized."""
    plain = matrix.name + _PLAIN
    if isinstance(matrix.format, BlockMatrix):  # the quantized matrix has that name
        return
    if plain not in found or found[plain][1].element is None:
        return
    quantized = quantized_names(found)
    if any(name.startswith(f"{matrix.name}.") for name in quantized):
        return
    gptq = isinstance(matrix.format, Gptq)
    if weight == "head" and gptq:
        why = (
            "the output matrix is not quantized; set lm_head to false in the quantization_config "
            "of config.json"
        )
    elif not quantized:
        why = "nothing in the checkpoint is quantized; remove quantization_config from config.json"
    elif gptq:
        why = (
            "the checkpoint is incomplete, as that matrix is not quantized and others are; take "
            "one in which the matrices of all layers are quantized"
        )
    else:
        why = (
            "that matrix is not quantized and others are; name it among the modules that "
            "quantization_config leaves out, or take a checkpoint in which it is quantized"
        )
    # A matrix that was never packed may be one of which the format has no tensors.
    lacks = f"{matrix.name}.qweight"
    if not gptq:
        lacks = next((each for each in _names(matrix) if each not in found), plain)
    raise WeightError(
        f"{folder} lacks tensor {lacks!r}, which config.json asks for, but has {plain!r}: {why}"
    )


def missing(
    folder: Path,
    weight: str,
    source: Source,
    stored: str,
    found: Found,
    form: QuantizedFormat | None,
) -> WeightError:
    """Return the error for the tensor ``stored`` that ``source`` of ``weight`` needs.

    ``form``: how the configuration says that the checkpoint is quantized.
    """
    if is_gguf(folder):
        return WeightError(
            f"{folder} lacks tensor {stored!r}, which its metadata and its other tensors ask for; "
            "download it again, or convert the model again"
        )
    problem = f"{folder} lacks tensor {stored!r}, which config.json asks for"
    inside = next((n for n in found if n.startswith(_INSIDE_ANOTHER)), None)
    if inside is not None:
        return WeightError(
            f"{problem}, but has {inside!r}: the weights are those of a larger model; take "
            "its own config.json, in which the language model's is text_config"
        )
    matrix = next((each for each in packed(source) if stored in _names(each)), None)
    if form is not None:
        stem = stored.removesuffix(_PLAIN) if matrix is None else matrix.name
        fix = _of_quantized(weight, stem, matrix, found, form)
        if fix is not None:
            return WeightError(f"{problem}{fix}")
    if weight == "head":
        return WeightError(
            f"{problem}; if the model shares it with the embedding, set tie_word_embeddings to true"
        )
    if form is not None:
        return WeightError(
            f"{problem}: the checkpoint is incomplete; download it again, configuration and "
            "weights from one place"
        )
    quantized = next(iter(quantized_names(found)), None)
    if quantized is not None:
        return WeightError(
            f"{problem}, but has {quantized!r}: quantized checkpoints are read where the "
            "quantization_config in config.json says how; take it from the original checkpoint"
        )
    return WeightError(f"{problem}; take configuration and weights from one checkpoint")


def missing_of_heads(folder: Path, stored: str) -> WeightError:
    """Return the error for the tensor ``stored`` that heads which draft need, and that is not one
    which they may share."""
    return WeightError(
        f"{folder} lacks tensor {stored!r}, which its config.json asks for; take configuration and "
        "weights from one checkpoint"
    )


def missing_of_target(folder: Path, weight: str, stored: str) -> WeightError:
    """Return the error for the tensor ``stored`` of a target's checkpoint, whose ``weight`` heads
    share."""
    fix = "take configuration and weights from one checkpoint"
    if weight == "head":
        fix = "if its output matrix is the embedding, set tie_word_embeddings to true"
    return WeightError(f"{folder} lacks tensor {stored!r}, which the heads share; {fix}")


def _of_quantized(
    weight: str, stem: str, matrix: Packed | None, found: Found, form: QuantizedFormat
) -> str | None:
    """What is wrong with the tensors of ``stem``, and the fix; None where there are none.

    ``matrix``: itself, if the configuration says that it is quantized.
    """
    if matrix is None:
        its = next((n for n in quantized_names(found) if n.startswith(f"{stem}.")), None)
        if its is None:
            return None
        if weight != "head":
            return (
                f", but has {its!r}: config.json says that this matrix is not quantized, and it "
                "is; take quantization_config from the original checkpoint"
            )
        return (
            f", but has {its!r}: the output matrix is quantized; set lm_head to true in the "
            "quantization_config of config.json"
        )
    names = _names(matrix)
    others = (n for n in quantized_names(found) if n not in names and not form.is_idle(n))
    its = next((n for n in others if n.startswith(f"{stem}.")), None)
    if its is not None:
        return (
            f", but has {its!r}: the matrix is stored in another format than quantization_config "
            "says; take config.json and weights from one checkpoint"
        )
    if any(name in found for name in names):
        return (
            f" beside the other tensors of the quantized matrix {stem!r}: the checkpoint is "
            "incomplete; download it again, or take the one that it was copied from"
        )
    return None


def _names(matrix: Packed) -> list[str]:
    form = matrix.format
    tensors = form.tensors(matrix.name, matrix.shape)
    return [*(tensor.name for tensor in tensors), *form.optional(matrix.name)]


def unexpected(names: list[str], file: TensorFile, architecture: str) -> WeightError:
    """Return the error for tensors of ``file`` that a model of ``architecture`` has no use for."""
    shown = ", ".join(map(repr, names[:3])) + (", ..." if len(names) > 3 else "")
    problem = f"{file.path}: {len(names)} tensor(s) have no place in the model: {shown}"
    if is_gguf(file.path):
        return WeightError(
            f"{problem}; {architecture}, for which its metadata ask, is computed without them: "
            "convert the model again with a current llama.cpp, or take its Hugging Face checkpoint"
        )
    if quantized_names(names):
        return WeightError(
            f"{problem}; quantized checkpoints are read where the quantization_config in "
            "config.json says how, and these tensors are not what it says"
        )
    return WeightError(
        f"{problem}; config.json describes a model without them, take both from one checkpoint"
    )
