"""The options of a request to embed, or to classify."""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

from penstock.errors import RequestError, shown

PoolingKind = Literal["last", "mean", "cls"]
PoolingTask = Literal["embed", "classify"]


class PoolingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How the hidden states of a prompt, after the model's last norm, become one vector; or that
    its labels are asked for.

    Invalid values raise :class:`~penstock.errors.RequestError` from :meth:`validate`, which the
    engine calls for every request.
    """

    task: PoolingTask = "embed"
    """classify: the vector is a logit for each of the model's labels, by the last token; the other
    options are then left as they are."""
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

    @property
    def normalizes(self) -> bool:
        """Whether the vector is scaled to length 1."""
        return self.normalize and self.task == "embed"

    def validate(self, hidden_size: int | None = None) -> None:
        """Raise RequestError naming the first option that is out of range."""
        if self.task not in get_args(PoolingTask):
            raise RequestError(
                f"task must be one of {', '.join(get_args(PoolingTask))}, not {shown(self.task)}",
                "task",
            )
        if self.task == "classify" and (self.pooling != "last" or self.dimensions is not None):
            name = "dimensions" if self.pooling == "last" else "pooling"
            raise RequestError(f"{name} is for embeddings, and this request is to classify", name)
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
