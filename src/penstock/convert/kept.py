"""Which of a quantized checkpoint's matrices can keep their values in a GGUF file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import cast

from penstock.convert.kept_blocks import COLUMNS, block_type
from penstock.errors import ModelError
from penstock.interface.plan_weights import PlanWeight
from penstock.interface.source_walks import packed
from penstock.interface.sources import RowsOf, Source, Stored, Unpaired
from penstock.models.gguf.places import WrittenTensor
from penstock.models.packed_matrix import MatrixFormat
from penstock.models.spec import ModelSpec
from penstock.quant.formats import GGUF_FORMATS

_WHICH = (
    "a GGUF file has symmetric integers of 8 bits, integers of 2 to 4 bits, in groups of 32 "
    "columns or a multiple, and MXFP4; take another --type, which rounds once more"
)


def kept_spec(spec: ModelSpec, where: str) -> ModelSpec:
    """The model with its matrices in the blocks that GGUF has, too, where they can be. Raises
    ModelError where nothing is quantized."""
    if spec.quantized is None:
        raise ModelError(
            f"{where} has nothing quantized whose values could be kept; take another --type, such "
            "as bf16"
        )
    return replace(spec, quantized=spec.quantized.limited(tuple(GGUF_FORMATS), False))


def kept_as(tensor: WrittenTensor, weights: Mapping[str, PlanWeight], where: str) -> str | None:
    """The type of a tensor of which the checkpoint has all matrices quantized; None: it has them in
    floats. Raises ModelError, naming the tensor, for what no type holds."""
    forms: dict[str, None] = {}
    kinds: dict[str | None, None] = {}
    for place in tensor.places:
        matrices = list(packed(weights[place.weight].source))
        if not matrices:
            kinds[None] = None
        for matrix in matrices:
            form = cast(MatrixFormat, matrix.format)  # which all formats of matrices of layers are
            kind = block_type(form.scheme)
            if kind is None or tensor.shape[-1] % COLUMNS or not _moves_rows(place.source):
                raise ModelError(
                    f"{where} has {place.weight} in {form.scheme or form}, which no GGUF file "
                    f"holds as it is: {_WHICH}"
                )
            kinds[kind], forms[str(form)] = None, None
    if len(kinds) > 1:
        raise ModelError(
            f"{where} has parts of {tensor.name} in {' and '.join(forms)}, and others not, and a "
            "GGUF file has all in one type; take another --type"
        )
    return next(iter(kinds))


def _moves_rows(source: Source) -> bool:
    """Whether a tensor has the rows of a weight as they are, in whatever order."""
    if isinstance(source, Unpaired):
        return _moves_rows(source.source)
    return isinstance(source, Stored) or (
        isinstance(source, RowsOf) and isinstance(source.source, Stored)
    )
