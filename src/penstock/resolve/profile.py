"""Says which options are a profile's, and what it was made for that is not the same here."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.config import EngineConfig
from penstock.hardware import Hardware
from penstock.models.spec import ModelSpec
from penstock.plan.plan import Plan
from penstock.profile import Profile
from penstock.resolve.inputs import Reasons
from penstock.resolved_config import ResolvedConfig
from penstock.version import __version__


@dataclass(frozen=True)
class ProfileUse:
    """What there is to say of a profile that was used."""

    reasons: Reasons
    """Those of the options that are the profile's."""
    notes: tuple[str, ...]


def use_of_profile(
    config: EngineConfig, resolved: ResolvedConfig, spec: ModelSpec, plan: Plan, hardware: Hardware
) -> ProfileUse:
    """What there is to say of ``config.profile``, whose options are in ``config`` already.

    Raises ConfigError for a profile of another model: limits that were found for one say nothing of
    another. Another machine, backend or version is noted, since all of it still works.
    """
    profile = config.profile
    if profile is None:
        return ProfileUse({}, ())
    profile.check_model(spec.architecture, plan.num_parameters)
    options = profile.options.engine()
    asked = {name: getattr(config, name) for name in options}
    why = f"from the profile ({profile.briefly})"
    reasons = {
        name: why
        for name, value in options.items()
        if asked[name] == value and hasattr(resolved, name)
    }
    notes = (*_elsewhere(profile, resolved, hardware), *profile.overruled(asked))
    return ProfileUse(reasons, notes)


def _elsewhere(profile: Profile, resolved: ResolvedConfig, hardware: Hardware) -> tuple[str, ...]:
    machine = profile.made_for.machine
    pairs = (
        ("on", machine.cpu_model, hardware.cpu_model),
        ("with backend", machine.backend, resolved.backend),
        ("with threads", str(machine.threads), str(resolved.threads)),
        ("by Penstock", profile.penstock, __version__),
    )
    return tuple(
        f"the profile was made {what} {made}, and this is {here}: other options may be better here "
        "(penstock tune finds them)"
        for what, made, here in pairs
        if made != here
    )
