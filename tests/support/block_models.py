"""Small models whose matrices are in blocks, of several formats each."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from penstock.models.spec import DType, ExpertsSpec, MlpSpec, ModelSpec
from penstock.plan.fuse import fuse
from penstock.plan.lower import lower
from penstock.plan.plan import Plan
from penstock.quant.scheme import Quantization
from support.blocks import BlockFormats, BlockWeights
from support.tiny_plans import dummy_weights, make_spec

MIXED: Final = BlockFormats(
    "Q4_K", {"v": "Q6_K", "down": "Q5_K", "embed": "Q8_0", "head": "Q6_K", "o": "Q5_0"}
)
SMALL: Final = BlockFormats("Q4_1", {"v": "Q5_1", "down": "IQ4_NL", "embed": "Q8_0", "o": "Q4_0"})
LOW: Final = BlockFormats("Q2_K", {"v": "Q3_K", "down": "IQ4_XS", "embed": "Q4_K"})


def spec_of(formats: BlockFormats, tie: bool = True) -> ModelSpec:
    """A model whose widths are of whole blocks."""
    spec = make_spec(tie=tie, heads=(16, 8))
    layers = tuple(replace(layer, mlp=MlpSpec(512)) for layer in spec.layers)
    return replace(spec, hidden_size=256, layers=layers, quantized=formats)


def experts_of(formats: BlockFormats) -> ModelSpec:
    """A mixture of experts, whose routers' matrices are in blocks, too."""
    spec = spec_of(formats)
    layers = tuple(replace(layer, mlp=ExpertsSpec(5, 2, 256)) for layer in spec.layers)
    return replace(spec, layers=layers)


def plan_of(spec: ModelSpec, dtype: DType, activations: bool = True) -> Plan:
    return fuse(lower(spec, dtype, quantization=Quantization(activations=activations)))


def weights_of(spec: ModelSpec, formats: BlockFormats) -> BlockWeights:
    return BlockWeights(lower(spec).weights, formats, dummy_weights(spec, 3, "float32"))
