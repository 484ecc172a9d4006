"""Who talks to whom: what the bits of blocks depend on is compared before anything is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from penstock.engine.block_identity import BlockIdentity
from penstock.engine.handover.wire import Introduce, Verdict
from penstock.errors import ConfigError
from penstock.handover_config import SECRET
from penstock.peers.channel import Channel
from penstock.peers.handshake import HANDSHAKE_S, Party
from penstock.processes.frames import WireError

Side = Literal["decode", "prefill"]


@dataclass(frozen=True)
class Introduction:
    """What an engine says of itself, and of whom it takes."""

    side: Side
    identity: BlockIdentity
    group_bytes: tuple[int, ...]
    key: bytes = b""
    any_kernels: bool = False

    @property
    def party(self) -> Party:
        """The engine as an end of connections."""
        return Party(f"{self.side} engine", f"{self._other} engine", SECRET, self.key)

    @property
    def _other(self) -> Side:
        return "prefill" if self.side == "decode" else "decode"

    def exchange(self, channel: Channel[Any]) -> None:
        """Compare with the engine at the other end of a new channel, which has no timeout when this
        returns. Raises ConfigError where one does not take the other, and what ``receive``
        raises."""
        channel.set_deadline(HANDSHAKE_S)
        channel.send(Introduce(self.identity, self.group_bytes))
        its = channel.receive().message
        if not isinstance(its, Introduce):
            raise WireError(f"a {type(its).__name__} message came in place of an introduction")
        refusal = self._refusal(its)
        channel.send(Verdict(refusal))
        verdict = channel.receive().message
        if not isinstance(verdict, Verdict):
            raise WireError(f"a {type(verdict).__name__} message came in place of a verdict")
        if refusal := refusal or verdict.refusal:
            raise ConfigError(refusal)
        channel.set_timeout(None)

    def _refusal(self, its: Introduce) -> str:
        """Why the other engine is not taken; empty if it is."""
        # The decode engine says whether kernels may differ: it is its answers that depend on them.
        any_kernels = self.any_kernels or self.side == "prefill"
        differences = self.identity.differences(its.identity, any_kernels)
        if not differences and its.group_bytes != self.group_bytes:
            differences = [f"blocks of {its.group_bytes} bytes, not {self.group_bytes}"]
        return f"the {self._other} engine has {'; '.join(differences)}" if differences else ""
