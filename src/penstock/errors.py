"""Errors a user can act on: each message names the cause and the fix."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator


class PenstockError(Exception):
    """Base of every error that Penstock raises on purpose."""


class ConfigError(PenstockError):
    """An option, or a combination of options, that cannot be honoured on this machine."""


class PositionsError(ConfigError):
    """A context, or what is read at once, is longer than the model has positions."""


class ModelError(PenstockError):
    """A model's configuration is missing, malformed, or asks for something unsupported."""


class WeightError(PenstockError):
    """A weight file is missing, truncated, corrupt, or disagrees with the configuration."""


class ArtifactError(PenstockError):
    """An engine artifact is damaged, or cannot be read, written or removed."""


class StoreError(PenstockError):
    """A directory of KV blocks cannot be used."""


class TokenizerError(PenstockError):
    """A tokenizer or chat template is missing, malformed, or failed on its input."""


class RequestError(PenstockError):
    """A request cannot be served as asked. Only this request is affected.

    ``param`` names the offending field of the request, where there is one.
    """

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class ContextLengthError(RequestError):
    """A prompt, or a prompt and the output that is asked for, have more tokens than the model's
    context holds."""


class OverloadedError(PenstockError):
    """The engine has as many requests as it may hold; this one may be sent again later."""


class UnavailableError(PenstockError):
    """Something that the request needs was missing, through no fault of its own; it may be sent
    again."""


class EngineDeadError(PenstockError):
    """The engine is closed, or its process is gone; its requests cannot be finished."""


def shown(value: object) -> str:
    """Return a value as an error's message shows it, in 80 characters at most."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer of thousands of digits, a deep list
        return f"this {type(value).__name__}"
    return text if len(text) <= 80 else text[:77] + "..."


def first_line(error: BaseException) -> str:
    """An error's message without further lines, such as the advice that torch adds."""
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")


def is_panic(error: BaseException) -> bool:
    """Whether an exception is a panic of native code: libraries in Rust raise these as a
    BaseException of their own, which cannot be imported."""
    return not isinstance(error, (Exception, KeyboardInterrupt, SystemExit, GeneratorExit))


@contextlib.contextmanager
def as_error(error: Callable[[str], PenstockError]) -> Iterator[None]:
    """Raise ``error`` of its message for a panic of native code that this block calls.

    A panic is no Exception (:func:`is_panic`), so ``except Exception`` lets it through: it would
    end a server's connection, or an engine, for the input of one request.
    """
    try:
        yield
    except BaseException as raised:
        if not is_panic(raised):
            raise
        raise error(first_line(raised)) from raised
