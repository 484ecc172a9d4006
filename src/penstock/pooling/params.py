"""The options of a request to embed."""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

from penstock.errors import RequestError, shown

PoolingKind = Literal["last", "mean", "cls"]


class PoolingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How the hidden states of a prompt, after the model's last norm, become one vector.

    Invalid values raise :class:`~penstock.errors.RequestError` from :meth:`validate`, which the
    engine calls for every request.
    """

    pooling: PoolingKind = "last"
    """last: the hidden state of the last token. mean: the average over all tokens. cls: the hidden
    state of the first token, which in models with causal attention, as all that Penstock runs are,
    depends on no other token."""
    normalize: bool = True
    """Whether to scale the vector to length 1."""
    dimensions: int | None = None
    """Number of leading components to keep, before normalizing; for models that were trained for
    that (Matryoshka). None keeps all."""

    @property
    def wants_all_rows(self) -> bool:
        """Whether the hidden states of all tokens are needed, not just those of one."""
        return self.pooling == "mean"

    def validate(self, hidden_size: int | None = None) -> None:
        """Raise RequestError naming the first option that is out of range."""
        kinds = get_args(PoolingKind)
        if self.pooling not in kinds:
            raise RequestError(
                f"pooling must be one of {', '.join(kinds)}, not {shown(self.pooling)}", "pooling"
            )
        if not isinstance(self.normalize, bool):
            raise RequestError(
                f"normalize must be true or false, not {shown(self.normalize)}", "normalize"
            )
        size = self.dimensions
        if size is None:
            return
        if isinstance(size, bool) or not isinstance(size, int):
            raise RequestError(f"dimensions must be an integer, not {shown(size)}", "dimensions")
        if size < 1:
            raise RequestError(f"dimensions must be at least 1, not {shown(size)}", "dimensions")
        if hidden_size is not None and size > hidden_size:
            raise RequestError(
                f"dimensions is {shown(size)}, and this model's embeddings have {hidden_size}",
                "dimensions",
            )
