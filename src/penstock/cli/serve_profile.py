"""What ``penstock serve`` does with a profile: the one of its command line, or one in its place."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from penstock.cli.serve_roles import role
from penstock.config import EngineConfig
from penstock.engine.ipc.spawn import CORE_VARIABLE, DEFAULT_CORE
from penstock.profile import Profile

if TYPE_CHECKING:
    from penstock.server.setups import EngineSetup


def with_profile(args: argparse.Namespace, profile: Profile) -> argparse.Namespace:
    """The command line, with a profile in the place of the one that it names, if any."""
    return argparse.Namespace(**{**vars(args), "profile": profile})


def engine_setup(args: argparse.Namespace, config: EngineConfig) -> EngineSetup:
    """What the command line says of the engine, ``config``, and of how many may wait for it."""
    from penstock.server.setups import EngineSetup

    told = () if config.profile is None else notes(args, config.profile)
    core = engine_core(os.environ)
    return EngineSetup(config, max_waiting(args, config), told, core, role(args))


def engine_core(environment: Mapping[str, str]) -> str:
    """The loader of the engine's core (``penstock.engine.ipc.core_loader``): the usual one, unless
    the environment names another, as ``penstock calibrate`` does to record steps."""
    return environment.get(CORE_VARIABLE) or DEFAULT_CORE


def notes(args: argparse.Namespace, profile: Profile) -> tuple[str, ...]:
    """What wins over the profile's options of the server."""
    asked, own = args.max_waiting, profile.max_waiting
    if asked is None or own is None or asked == own:
        return ()
    return (
        f"max_waiting is {asked:,}, as asked, in the place of the profile's {own:,}, with which "
        "it was tuned",
    )


def max_waiting(args: argparse.Namespace, config: EngineConfig) -> int:
    """The limit that was asked for, else the profile's, else the usual one."""
    from penstock.frontend.open_sequences import MAX_WAITING

    asked: int | None = args.max_waiting
    own = None if config.profile is None else config.profile.max_waiting
    return next((each for each in (asked, own) if each is not None), MAX_WAITING)
