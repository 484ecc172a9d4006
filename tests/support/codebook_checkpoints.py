"""Tiny checkpoints of codebooks of rows, and their plans."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from penstock.backends.registry import backend
from penstock.models.row_codebooks import RowCodebooks
from penstock.models.spec import DType
from penstock.plan.lower import lower
from penstock.plan.plan import Plan
from penstock.quant.scheme import CODEBOOKS, CodebookBits
from penstock.quantize.forms.codebooks import Codebooks
from penstock.quantize.methods import RoundToNearest
from penstock.quantize.quantization import Quantization
from penstock.quantize.run import quantize
from penstock.quantize.source import SourceModel
from penstock.weights.model_folder import load_model_spec
from support.checkpoints import tiny_checkpoint


def codebook_checkpoint(at: Path, bits: CodebookBits, family: str, **fields: Any) -> Path:
    """Write a tiny model of ``family`` whose rows have codebooks, and one weight of a hundred in
    floats, to the folder ``at``, which is returned."""
    source = SourceModel(tiny_checkpoint(family, **{"intermediate_size": 96, **fields}))
    form = Codebooks(RowCodebooks(bits, 0.01), source.spec.dtype)
    quantize(Quantization(source, RoundToNearest(form)), at, backend("cpu").bind, 1)
    return at


def codebook_plan(folder: Path, dtype: DType) -> Plan:
    """The primitive plan of a checkpoint that is multiplied by as it is stored."""
    spec = load_model_spec(folder)
    assert spec.quantized is not None
    spec = replace(spec, quantized=spec.quantized.limited({CODEBOOKS}, rounded=False))
    return lower(spec, dtype)
