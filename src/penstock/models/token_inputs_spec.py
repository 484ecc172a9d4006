"""What each layer is given of a token besides the residual stream, as data."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.models.activation import Activation


@dataclass(frozen=True)
class TokenInputsSpec:
    """A second embedding, of ``size`` columns for each layer (Gemma's per-layer embeddings).

    Of a token with embedding e, as the first layer reads it, layer i is given
    ``g = scale * (rms_norm(projection_scale * P_i e) * w + factor * E_i[token])``, where ``P_i``
    and ``E_i`` are the layer's ``size`` rows of ``token_inputs.project`` and columns of the table
    ``token_inputs.embed``, and w, ``token_inputs.norm``, is the same for all layers. Behind its
    MLP, the layer adds ``rms_norm(U (activation(G x) * g)) * w_i`` to the residual stream x, with
    matrices and a norm of its own: ``layers.3.token_gate``, ``token_up`` and ``token_norm``.
    """

    size: int
    vocab_size: int
    """Rows of the table, at least as many as there are tokens."""
    activation: Activation
    eps: float
    factor: float
    """Rounded to the type in which the weights are served."""
    projection_scale: float
    scale: float
