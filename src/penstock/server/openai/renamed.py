"""Errors of a request that was turned into one of this dialect, by the names of the client's
fields."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from penstock.errors import ContextLengthError, RequestError
from penstock.server.errors import ApiError


@contextmanager
def by_names(names: Mapping[str, str]) -> Iterator[None]:
    """Raise what is raised inside for a field of the request as one for the client's: ``names``
    has the names of the client's fields by the names of the dialect's."""
    try:
        yield
    except (ApiError, RequestError) as error:
        raise _renamed(error, names) from None


def _renamed(error: ApiError | RequestError, names: Mapping[str, str]) -> ApiError | RequestError:
    param = error.body.error.param if isinstance(error, ApiError) else error.param
    text = _in_text(str(error), param, names)
    param = None if param is None else names.get(param, param)
    if isinstance(error, ApiError):
        body = error.body.error
        return ApiError(error.status, text, type=body.type, param=param, code=body.code)
    kind = ContextLengthError if isinstance(error, ContextLengthError) else RequestError
    return kind(text, param)


def _in_text(text: str, param: str | None, names: Mapping[str, str]) -> str:
    """``text`` with the client's names. A name that is a word of English, such as ``prompt``, is
    taken for a name only where the text begins with it and the error is that field's."""
    for name in sorted(names, key=len, reverse=True):
        if re.search(r"[_.]", name):
            text = re.sub(rf"(?<![\w.]){re.escape(name)}(?!\w)", lambda _, n=name: names[n], text)  # type: ignore[misc]
        elif name == param and re.match(rf"{re.escape(name)}\b", text):
            text = names[name] + text.removeprefix(name)
    return text
