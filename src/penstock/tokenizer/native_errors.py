"""What the tokenizers library raises where it is given something that it cannot be."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from penstock.errors import TokenizerError, first_line


@contextlib.contextmanager
def refusing(problem: str) -> Iterator[None]:
    """Turn what the library raises into a TokenizerError: ``problem``, and what it said.

    It raises bare Exceptions. Where its own code fails (a *panic*, in Rust) it raises what is no
    Exception at all, and would end the process.
    """
    try:
        yield
    except TokenizerError:
        raise
    except Exception as error:
        raise TokenizerError(f"{problem}: {first_line(error)}") from error
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise TokenizerError(f"{problem}: {first_line(error)}") from None
