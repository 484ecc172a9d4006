"""Tiny checkpoints of lattice points, and their plans."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from penstock.backends.registry import backend
from penstock.models.spec import DType
from penstock.plan.lower import lower
from penstock.plan.plan import Plan
from penstock.quant.scheme import LATTICE, LatticeBits
from penstock.quantize.forms.lattice import Lattice
from penstock.quantize.methods import RoundToNearest
from penstock.quantize.quantization import Quantization
from penstock.quantize.run import quantize
from penstock.quantize.source import SourceModel
from penstock.weights.model_folder import load_model_spec
from support.checkpoints import tiny_checkpoint


def lattice_checkpoint(at: Path, bits: LatticeBits, family: str, **fields: Any) -> Path:
    """Write a tiny model of ``family`` whose matrices are points to the folder ``at``, which is
    returned; all rows are whole numbers of 32 columns."""
    source = SourceModel(tiny_checkpoint(family, **{"intermediate_size": 96, **fields}))
    quantize(Quantization(source, RoundToNearest(Lattice(bits, 5))), at, backend("cpu").bind, 1)
    return at


def lattice_plan(folder: Path, dtype: DType) -> Plan:
    """The primitive plan of a checkpoint that is multiplied by as it is stored."""
    spec = load_model_spec(folder)
    assert spec.quantized is not None
    spec = replace(spec, quantized=spec.quantized.limited({LATTICE}, rounded=False))
    return lower(spec, dtype)
