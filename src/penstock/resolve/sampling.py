"""Decides the sampling options of requests that leave them out."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.resolve.inputs import Inputs, Reasons
from penstock.sampling.defaults import SamplingDefaults


@dataclass(frozen=True)
class SamplingDecision:
    """The defaults of sampling options."""

    defaults: SamplingDefaults
    reasons: Reasons


def decide_sampling(inputs: Inputs) -> SamplingDecision:
    """Return what the model's makers recommend, unless the user wants none of it."""
    none, recommended = SamplingDefaults(), inputs.spec.sampling_defaults
    if inputs.config.generation_config == "none":
        return SamplingDecision(none, {"sampling_defaults": "as asked"})
    why = "the model recommends nothing"
    if recommended != none:
        why = "the model's generation_config.json"
    return SamplingDecision(recommended, {"sampling_defaults": why})
