"""Puts another profile in force while the server serves, at a time when no request is open."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from dataclasses import dataclass, field

from penstock.errors import ConfigError, EngineDeadError
from penstock.profile import Profile
from penstock.server.errors import RETRY_AFTER_S, ApiError, unavailable
from penstock.server.setups import EngineSetup, Setups
from penstock.server.status_structs import ProfileStatus, Switched, SwitchPhase, SwitchStatus
from penstock.server.supervisor import NotExchangedError, Supervisor

_log = logging.getLogger("penstock.switch")


@dataclass
class _Pending:
    profile: Profile
    within_s: float
    setup: EngineSetup
    phase: SwitchPhase = "waiting"
    began: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began


class Switch:
    """Switches the server to other profiles, one at a time. Belongs to one event loop.

    A switch waits for a moment in which no request uses the engine. If there is none for
    ``within_s`` seconds, new requests are held until those that are open have ended; with 0 they
    are from :meth:`begin` on. Then the supervisor exchanges the engine, and the requests that were
    held go to the next one: to that of the former setup, if one of the new setup cannot start. An
    engine that dies meanwhile is started again with the setup in force, as ever, and the switch
    goes on.
    """

    def __init__(self, engine: Supervisor, setups: Setups) -> None:
        self._engine = engine
        self._setups = setups
        self._pending: _Pending | None = None
        self._task: asyncio.Task[Switched] | None = None
        self._failed: str | None = None

    @property
    def status(self) -> ProfileStatus:
        pending, turnstile = self._pending, self._engine.turnstile
        return ProfileStatus(
            made=self._engine.setup.made,
            failed=self._failed,
            pending=None
            if pending is None
            else SwitchStatus(
                made=pending.profile.made,
                phase=pending.phase,
                seconds=pending.seconds,
                held=turnstile.waiting,
            ),
        )

    def begin(self, profile: Profile, within_s: float) -> asyncio.Task[Switched]:
        """Begin to put a profile in force. It goes on whether or not anybody awaits the task, which
        raises ApiError where the switch fails.

        Raises ApiError if another switch is pending, and for a profile of another model.
        """
        if self._pending is not None:
            raise ApiError(
                409,
                f"a switch to the profile of {self._pending.profile.made} is pending; ask again "
                "when it is over (GET /admin/status shows it)",
                code="switch_pending",
            )
        model = self._engine.model
        try:
            if model.parameters:
                profile.check_model(model.architecture, model.parameters)
            setup = self._setups.of_profile(profile)
        except ConfigError as error:
            raise ApiError(400, str(error), param="profile") from None
        self._pending = pending = _Pending(profile, within_s, setup)
        if within_s <= 0 and not setup.same_engine(self._engine.setup):
            self._hold(pending)
        self._task = asyncio.ensure_future(self._run(pending))
        self._task.add_done_callback(self._over)
        return self._task

    def cancel(self) -> None:
        """Give up a switch that is pending, for the end of the server. An exchange that has begun
        goes on: it is the shortest way to an engine for those that are held."""
        pending, task = self._pending, self._task
        if task is not None and pending is not None and pending.phase != "starting":
            task.cancel()

    async def aclose(self) -> None:
        """End the switch in whatever phase it is; the supervisor no longer runs."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self, pending: _Pending) -> Switched:
        made = pending.profile.made
        try:
            switched = await self._switched(pending)
        except NotExchangedError as error:
            why = f"the engine does not start with the profile of {made}: {error}"
            self._failed = why
            _log.error("%s; it is served as before", why)
            raise ApiError(
                422, f"{why}; the server goes on as before", code="profile_not_applied"
            ) from None
        except EngineDeadError as error:
            raise unavailable(str(error), "engine_dead", RETRY_AFTER_S) from None
        except asyncio.CancelledError:
            _log.warning("the switch to the profile of %s was given up", made)
            raise unavailable(
                "the server is shutting down, and the switch was given up",
                "shutting_down",
                RETRY_AFTER_S,
            ) from None
        self._failed = None
        return switched

    def _over(self, task: asyncio.Task[Switched]) -> None:
        """Let requests in, whatever became of the switch: it may not even have begun to run.
        Whoever awaits it goes on behind this."""
        self._engine.turnstile.open()
        self._pending = None
        if not task.cancelled():
            task.exception()  # was logged

    async def _switched(self, pending: _Pending) -> Switched:
        engine, turnstile, setup = self._engine, self._engine.turnstile, pending.setup
        made = pending.profile.made
        if setup.same_engine(engine.setup):
            engine.adopt(setup)
            self._keep(pending.profile)
            _log.warning("the profile of %s is in force, with the same engine", made)
            return Switched(made=made, notes=[*setup.notes, *setup.overruled])
        await self._emptied(pending)
        pending.phase, waited_s = "starting", pending.seconds
        await engine.exchange(setup)
        self._keep(pending.profile)
        turnstile.open()
        llm, took = engine.llm, pending.seconds - waited_s
        _log.warning(
            "the profile of %s is in force after %.1f s (%s; pid %d); requests held: %d, the "
            "longest for %.1f s",
            *(made, took, pending.profile.options, llm.process.pid),
            *(turnstile.total_held, turnstile.longest_held_s),
        )
        config = llm.ready.config
        return Switched(
            made=made,
            seconds=took,
            waited_s=waited_s,
            held=turnstile.total_held,
            longest_held_s=turnstile.longest_held_s,
            notes=[*setup.notes, *(() if config is None else config.notes)],
        )

    async def _emptied(self, pending: _Pending) -> None:
        """Wait until no request is inside, and hold new ones from then on, or already after
        ``within_s``."""
        turnstile = self._engine.turnstile
        if pending.phase == "waiting":
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pending.within_s):
                    await turnstile.emptied()
            self._hold(pending)
        await turnstile.emptied()

    def _hold(self, pending: _Pending) -> None:
        """Hold the requests that come from now on."""
        self._engine.turnstile.close()
        pending.phase = "holding"

    def _keep(self, profile: Profile) -> None:
        try:
            self._setups.keep(profile)
        except OSError as error:
            _log.error(
                "the profile cannot be kept, and a server that dies comes back with the former "
                "one: %s",
                error,
            )
