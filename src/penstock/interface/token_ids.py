"""The ids of a model's tokens, and the one refusal of what is none."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from penstock.errors import RequestError, shown


def first_bad_token(token_ids: Sequence[int], vocab_size: int) -> int | None:
    """Return the index of the first token id that is not an ``int`` in ``[0, vocab_size)``, if any.

    Good prompts, which are nearly all, are not looked at token by token in Python.
    """
    if (
        set(map(type, token_ids)) <= {int}
        and min(token_ids, default=0) >= 0
        and max(token_ids, default=0) < vocab_size
    ):
        return None
    return next(i for i, t in enumerate(token_ids) if type(t) is not int or not 0 <= t < vocab_size)


def check_token_ids(token_ids: Iterable[int], vocab_size: int, param: str = "prompt") -> list[int]:
    """Return the token ids as a list.

    Raises RequestError naming the field ``param`` if one is no token of a vocabulary of
    ``vocab_size``.
    """
    ids = token_ids if isinstance(token_ids, list) else list(token_ids)
    bad = first_bad_token(ids, vocab_size)
    if bad is None:
        return ids
    raise RequestError(
        f"{the(param)} holds token id {shown(ids[bad])}, outside the vocabulary of {vocab_size}: "
        f"token ids are integers from 0 to {vocab_size - 1}",
        param,
    )


def the(param: str) -> str:
    """Return how a sentence calls a field of the request: a prompt is one even where no field of
    that name was sent."""
    return "the prompt" if param == "prompt" else param
