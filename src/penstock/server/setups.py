"""What the engines of one server are started with: as the command line says, with any profile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import msgspec

from penstock.config import EngineConfig
from penstock.engine.ipc.spawn import DEFAULT_CORE, EngineChild
from penstock.frontend.open_sequences import MAX_WAITING
from penstock.handover_config import Role
from penstock.profile import Profile


@dataclass(frozen=True)
class EngineSetup:
    """One way to start the server's engine, and how many requests may wait for it.

    All setups of a server are of the same model and tokenizer, under the same name: profiles set
    none of these. How long requests may be is a matter of the setup.
    """

    config: EngineConfig
    max_waiting: int = MAX_WAITING
    """Most waiting sequences beyond those that can run at once; further ones are refused, except
    for tenants below their share (``penstock.frontend.open_sequences``)."""
    notes: tuple[str, ...] = ()
    """What there is to say of the server's options beside those of its profile."""
    core: str = DEFAULT_CORE
    role: Role | None = None
    """Whether prompts are computed apart, and by whom."""

    @property
    def profile(self) -> Profile | None:
        return self.config.profile

    @property
    def made(self) -> str | None:
        """When its profile was made; None without one."""
        return None if self.profile is None else self.profile.made

    @property
    def overruled(self) -> list[str]:
        """What there is to say of its profile's options of the engine that are not in force; an
        engine that starts says so itself."""
        profile = self.profile
        if profile is None:
            return []
        return profile.overruled({n: getattr(self.config, n) for n in profile.options.engine()})

    def spawn(self) -> EngineChild:
        """Start an engine's process. Raises EngineDeadError."""
        return EngineChild.spawn(self.config, self.core, self.role)

    @property
    def without_adapters(self) -> EngineSetup:
        """The same with room for its adapters and none of them: those of a server change while it
        runs, and one whose files are gone must not keep an engine from being started again."""
        config = self.config
        room = config.max_loras or len(config.lora_modules) or None
        config = msgspec.structs.replace(config, lora_modules=(), max_loras=room)
        return replace(self, config=config)

    def same_engine(self, other: EngineSetup) -> bool:
        """Whether an engine of the other setup does all that one of this would."""
        mine, theirs = (
            msgspec.structs.replace(each.config, profile=None) for each in (self, other)
        )
        return (mine, self.core) == (theirs, other.core)


@dataclass(frozen=True)
class Setups:
    """The setups that a server may have."""

    first: EngineSetup
    """The one that it begins with."""
    of_profile: Callable[[Profile], EngineSetup]
    """Makes the one with this profile in the place of any other. Raises ConfigError."""
    keep: Callable[[Profile], None]
    """Has the server's next process begin with this profile, should this one die. Raises OSError.
    """
