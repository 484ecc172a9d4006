"""What the tokenizers library raises where it is given something that it cannot be."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from penstock.errors import TokenizerError, as_error, first_line


@contextlib.contextmanager
def refusing(problem: str) -> Iterator[None]:
    """Turn what the library raises, bare Exceptions and panics, into a TokenizerError: ``problem``,
    and what it said."""
    try:
        with as_error(lambda text: TokenizerError(f"{problem}: {text}")):
            yield
    except TokenizerError:
        raise
    except Exception as error:
        raise TokenizerError(f"{problem}: {first_line(error)}") from error
