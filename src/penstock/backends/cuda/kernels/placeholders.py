"""Placeholders replaced on the device by the tokens that the step before sampled."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 256


def put_tokens(token_ids: Tensor, sampled: Tensor) -> None:
    """Replace every ``~i`` in ``token_ids`` int32 ``[T]`` by ``sampled[i]``, in place.

    sampled int32 ``[n]`` with n above every such i.
    """
    count = len(token_ids)
    _put_tokens[(triton.cdiv(count, _BLOCK),)](token_ids, sampled, count, BLOCK=_BLOCK)


@triton.jit(do_not_specialize=["count"])
def _put_tokens(token_ids, sampled, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    token = tl.load(token_ids + at, mask=at < count, other=0)
    placeholder = token < 0
    tl.store(token_ids + at, tl.load(sampled + ~token, mask=placeholder), mask=placeholder)
