"""What a test may lack and be skipped for, each with a reason that names it.

``pytest --no-skips`` fails every other skip: a native library that did not build, a package of the
extra ``test`` that is missing, a list of parameters that came out empty.
"""

from __future__ import annotations

import os
from enum import StrEnum
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

import pytest

from penstock.backends.cpu import native
from penstock.errors import ConfigError

REPOSITORY = Path(__file__).parents[2]


class Need(StrEnum):
    """What a machine may lack through no fault of the build: how each such reason begins."""

    GPU = "needs a GPU"
    INTERPRETER = "needs kernels that are interpreted"
    INSTRUCTIONS = "needs instructions that this machine lacks"
    FILE = "needs the file, which is no part of the repository"
    PROGRAM = "needs the program"
    RIGHT = "needs the right to"
    CPUS = "needs more CPUs"
    PACKAGE = "needs the package, which no extra has"
    EXTRA = "needs the extra, which tests do without"

    def reason(self, detail: str) -> str:
        return f"{self}: {detail}"


def lacking(need: Need, detail: str) -> NoReturn:
    """Skip the test, or the module that is being imported, for want of what ``detail`` names."""
    pytest.skip(need.reason(detail), allow_module_level=True)


def allowed(reason: str) -> bool:
    """Whether ``--no-skips`` lets a test be skipped for this."""
    return any(reason.removeprefix("Skipped: ").startswith(f"{need}: ") for need in Need)


@cache
def shared(name: str) -> Path:
    """A file or folder of data that is shared with other projects, whether it is there or not.

    ``PENSTOCK_SHARED`` names the folder of all that; by default it is ``shared``, in the repository
    or beside it.
    """
    places = [REPOSITORY / "shared", REPOSITORY.parent / "shared"]
    if folder := os.environ.get("PENSTOCK_SHARED"):
        places = [Path(folder)]
    found = [place / name for place in places if (place / name).exists()]
    return found[0] if found else places[-1] / name


def needs_shared(*names: str) -> pytest.MarkDecorator:
    """Skips tests where one of these is absent."""
    absent = [f"shared/{name}" for name in names if not shared(name).exists()]
    return pytest.mark.skipif(bool(absent), reason=Need.FILE.reason(", ".join(absent)))


def require_shared(name: str) -> Path:
    """The path of :func:`shared`; skips the test where nothing is there."""
    path = shared(name)
    if not path.exists():
        lacking(Need.FILE, f"shared/{name}")
    return path


NO_NATIVE = "the native library was not built for this machine"
needs_native = pytest.mark.skipif(not native.runnable(), reason=NO_NATIVE)
"""Skips tests where the native library is absent, which ``--no-skips`` does not allow."""


def require_native() -> None:
    if not native.runnable():
        pytest.skip(NO_NATIVE)


def require_ray() -> None:
    """Skips a module of tests where Ray is not installed: it is large, and fleets alone need it."""
    if find_spec("ray") is None:
        lacking(Need.EXTRA, "ray, by pip install 'penstock[ray]'")


def native_module(isa: str) -> Any:
    """The native library for a set of instructions that this CPU has; skips the test where the
    system does not grant their registers."""
    try:
        return native.load(isa)
    except ConfigError as error:
        if "the kernel refuses" not in str(error):
            raise
        lacking(Need.INSTRUCTIONS, str(error))
