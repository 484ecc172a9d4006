"""Heads that draft for a model: small models of their own that read its hidden states.

What a head reads beside tokens are *features*, ``feature_size`` float32 columns a row
(``StepInput.features``). Both kinds are :class:`~penstock.models.spec.ModelSpec`\\ s, so they are
lowered, bound and loaded like any model; ``vocab_size`` is the target's, whose tokens they read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from penstock.interface.sources import Shape, Source, Stored
from penstock.models.llama import NAMES as LLAMA_NAMES
from penstock.models.names import Name, NameMap, plain
from penstock.models.spec import ModelSpec, NormSpec

EagleKind = Literal["eagle1", "eagle3"]

DRAFT_TO_TARGET: Final = "d2t"
"""The tensor that says which token of the target's vocabulary each row of EAGLE 3's output matrix
is."""
TARGET_IN_DRAFT: Final = "t2d"
"""The tensor that says which tokens of the target's vocabulary can be drafted; the inverse of
``d2t``."""

STRETCHABLE = ("default", "linear", "llama3")
"""Kinds of rope whose angle at a position does not depend on how many positions there are."""


@dataclass(frozen=True, kw_only=True)
class MedusaSpec(ModelSpec):
    """Medusa: several heads side by side, each of which predicts one token further ahead.

    Features are the target's hidden state after its final norm, ``[hidden_size]``, at the row that
    predicts token t + 1; head h predicts token t + 2 + h. A head is ``num_blocks`` times
    ``x + silu(W x + b)`` and then an output matrix. There are no layers and no cache.
    """

    num_heads: int
    num_blocks: int

    @property
    def kind(self) -> Literal["medusa"]:
        return "medusa"

    @property
    def target_hidden_size(self) -> int:
        return self.hidden_size

    @property
    def feature_size(self) -> int:
        return self.hidden_size


@dataclass(frozen=True, kw_only=True)
class EagleSpec(ModelSpec):
    """EAGLE: one layer that goes on from the target's features, a token at a time.

    Row j has token j + 1, position j and features of position j, and predicts token j + 2. Its
    residual stream behind the layer is what stands for the target's features at j + 1, so drafts
    are drafted on. ``eagle1`` is the form of EAGLE 1 and 2, which differ in their trees alone.

    ``eagle1``: features are the target's hidden state after its final norm, or the residual stream
    of the row before. The layer reads ``fc(embedding, features)`` without a norm, and the
    target's output matrix reads what it makes of it. Where that is taken from the target, so are
    its bias and the scale and the cap of logits: then a head that foretells the target's hidden
    state has the target's own logits.

    ``eagle3``: features are ``len(taps)`` residual streams of the target, then the residual stream
    of the row before; the one or the other is zero. ``fc(taps) + before`` is the residual stream;
    attention reads the normed embedding beside it, normed too. Logits are of ``num_outputs``
    tokens.

    Embeddings are rows of the table as it is stored, also where they are the target's: heads are
    trained with these, and what the target multiplies them by or adds to them is not read.
    """

    kind: EagleKind
    target_hidden_size: int
    num_outputs: int
    """Number of rows of the output matrix."""
    taps: tuple[int, ...] = ()
    """Layers of the target whose input hidden states are read as features."""
    fc_bias: bool = False
    input_norm: NormSpec | None = None
    """The norm, for ``eagle3``, of the embedding and that of the residual stream beside it."""
    token_offsets: Stored | None = None
    """What tells which token of the vocabulary each output is: ``Plan.token_offsets``."""

    @property
    def feature_size(self) -> int:
        if self.kind == "eagle1":
            return self.hidden_size
        return self.tapped_size + self.hidden_size

    @property
    def tapped_size(self) -> int:
        """Number of feature columns that come from the target's residual streams."""
        return len(self.taps) * self.target_hidden_size


DraftHeadsSpec = MedusaSpec | EagleSpec


def medusa_names(num_blocks: int) -> NameMap:
    """The names of Medusa's weights, without ``medusa_head.``."""
    return NameMap(
        plain({"heads.*.blocks.*.fc": "*.*.linear", "heads.*.head": f"*.{num_blocks}"}),
        published="heads",
    )


def eagle_names(kind: EagleKind) -> NameMap:
    """The names of EAGLE's weights: Llama's, without ``model.``, and a few of its own."""
    llama = {
        pattern: Name(name.stored.removeprefix("model."))
        for pattern, name in LLAMA_NAMES.names.items()
    }
    own = {
        "fc": "fc",
        "layers.*.input_norm": "layers.*.input_layernorm",  # EAGLE 3: of the embedding
        "layers.*.feature_norm": "layers.*.hidden_norm",  # of what is read beside it
    }
    idle = r"(layers\.0\.self_attn\.)?rotary_emb\.inv_freq"
    if kind == "eagle3":
        idle += f"|{DRAFT_TO_TARGET}|{TARGET_IN_DRAFT}"
    return NameMap(llama | plain(own), idle, published="heads")


def of_target(target: ModelSpec, name: str, shape: Shape) -> Source:
    """The source of the target's ``embed`` or ``head`` in the target's checkpoint; a tied ``head``
    is the embedding."""
    if name == "head" and target.tie_embeddings:
        name = "embed"
    if target.names is None:
        return Stored(name, shape)
    form = None if target.quantized is None else target.quantized.matrix(name)
    return target.names.source(name, {name: shape}, form)


def taps_of(draft: ModelSpec | None) -> tuple[int, ...]:
    """The layers of its target whose inputs what drafts reads, if it reads any."""
    return draft.taps if isinstance(draft, EagleSpec) else ()
