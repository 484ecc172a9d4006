"""What mixes the tokens of a sequence in the place of attention."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.errors import ModelError


@dataclass(frozen=True)
class ShortConvSpec:
    """A gated causal convolution over a few tokens (LFM2, arXiv 2511.23404).

    Three products of the layer's input, each of ``hidden_size`` columns, give b, c and x (weights
    ``conv_b``, ``conv_c``, ``conv_x``). ``u = b * x`` is convolved along the sequence, each column
    by ``kernel`` numbers of its own (weight ``conv``, ``[hidden_size, kernel]``): token t gets the
    sum of ``conv[:, j] * u[t - kernel + 1 + j]``, where u is 0 before the first token. c times that
    goes through an output matrix (``o``).

    Raises ModelError for a convolution that sees no token but its own.
    """

    kernel: int
    """Number of tokens that one sees, itself included."""
    bias: bool = False
    """Whether the products and the convolution have biases."""

    def __post_init__(self) -> None:
        if self.kernel < 2:
            raise ModelError("a convolution along the sequence has at least two tokens")
