"""What mixes the tokens of a sequence: attention, or what stands in its place or beside it."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.errors import ModelError
from penstock.models.attention_spec import AttentionSpec
from penstock.models.state_spec import StateSpec


@dataclass(frozen=True)
class ShortConvSpec:
    """A gated causal convolution over a few tokens (LFM2, arXiv 2511.23404).

    Three products of the layer's input give b, c and x (weights ``conv_b``, ``conv_c`` and
    ``conv_x``). ``u = b * x`` is convolved along the sequence, each column by ``kernel`` numbers of
    its own (weight ``conv``, ``[size, kernel]``): token t gets the sum of
    ``conv[:, j] * u[t - kernel + 1 + j]``, where u is 0 before the first token. c times that goes
    through an output matrix (``conv_out``).

    Raises ModelError for a convolution that sees no token but its own.
    """

    size: int
    """Number of columns that are convolved, which is that of the hidden state."""
    kernel: int
    """Number of tokens that one sees, itself included."""
    bias: bool = False
    """Whether the products and the convolution have biases."""

    def __post_init__(self) -> None:
        if self.kernel < 2:
            raise ModelError(
                f"a convolution along the sequence sees 2 tokens or more, not {self.kernel}"
            )


Mixer = AttentionSpec | ShortConvSpec | StateSpec
"""What makes a token's row depend on the tokens before it."""


@dataclass(frozen=True)
class MixerSum:
    """Mixers of a layer side by side, such as attention and a selective scan (Falcon-H1).

    All read the same rows; what each makes is multiplied by its factor, and these are added in
    their order.

    Raises ModelError where there is not a factor for each, and for two mixers of which both cache
    rows of tokens or both keep states, as a layer has one place for each.
    """

    mixers: tuple[Mixer, ...]
    factors: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.mixers or len(self.factors) != len(self.mixers):
            raise ModelError("mixers side by side are one or more, with a factor for each")
        states = sum(isinstance(mixer, StateSpec) for mixer in self.mixers)
        if states > 1 or len(self.mixers) - states > 1:
            raise ModelError(
                "side by side are at most one mixer that keeps a state and one that does not"
            )
