"""Tiny models whose layers keep states, and weights with which they remember for a while."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.models.spec import GatedDeltaSpec, LayerSpec, ModelSpec, SelectiveSpec, StateSpec
from support.tame_weights import TameWeights
from support.tiny_plans import NORM, make_spec

NET = GatedDeltaSpec(2, 4, key_dim=16, value_dim=32, kernel=4, eps=1e-6)
OTHER_NET = GatedDeltaSpec(3, 3, key_dim=32, value_dim=16, kernel=2, eps=1e-5)
SCAN = SelectiveSpec(6, head_dim=16, groups=2, state=24, kernel=4, eps=1e-5)


def state_spec(*mixers: StateSpec, attention: bool = True) -> ModelSpec:
    """A layer of attention, if any, between the first of these and the others."""
    spec = make_spec(qk_norm=True)
    (layer, _) = spec.layers
    layers = [LayerSpec(mixer, layer.mlp, NORM, NORM) for mixer in mixers]
    if attention:
        layers.insert(1, layer)
    return replace(spec, layers=tuple(layers))


class StateWeights(TameWeights):
    """Weights of which those of decays make states that fade over some tens of tokens."""

    def get(self, name: str) -> NDArray[Any]:
        values = super().get(name)
        if name.endswith("a_log"):
            return np.asarray(values - 3, values.dtype)
        return values
