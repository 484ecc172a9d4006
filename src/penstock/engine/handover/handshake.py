"""Who talks to whom: versions, identities and keys are compared before anything else is said.

Each side sends a Hello with a nonce, and then a Proof: HMAC-SHA256 by the secret over both Hellos
and the name of its side, so that a proof is of this connection and cannot be sent back. Keys of
frames are made of the same.
"""

from __future__ import annotations

import hmac
import secrets
import time
from dataclasses import dataclass
from typing import Final

import msgspec

from penstock.engine.handover.identity import HandoverIdentity
from penstock.engine.handover.link import Link
from penstock.engine.handover.wire import HANDSHAKE_S, PROTOCOL, Hello, NotTaken, Proof, Side
from penstock.errors import PenstockError
from penstock.processes.frames import WireError

_NONCE_BYTES: Final = 16
_OTHER: Final[dict[Side, Side]] = {"decode": "prefill", "prefill": "decode"}


class RefusedError(PenstockError):
    """One side does not take the other; trying again changes nothing."""


@dataclass(frozen=True)
class Introduction:
    """What an engine says of itself, and of whom it takes."""

    side: Side
    identity: HandoverIdentity
    group_bytes: tuple[int, ...]
    key: bytes = b""
    any_kernels: bool = False

    def shake(self, link: Link) -> None:
        """Exchange Hellos and Proofs; the link is ready for what follows when this returns.

        Raises RefusedError, and what ``Link`` raises.
        """
        deadline = time.monotonic() + HANDSHAKE_S
        mine = Hello(
            protocol=PROTOCOL,
            side=self.side,
            nonce=secrets.token_bytes(_NONCE_BYTES),
            keyed=bool(self.key),
            identity=self.identity,
            group_bytes=self.group_bytes,
        )
        link.set_timeout(HANDSHAKE_S)
        link.send(mine)
        its = self._next(link, deadline)
        if not isinstance(its, Hello):
            raise WireError(f"a {type(its).__name__} message came in place of a Hello")
        self._check(link, its)
        hellos = (mine, its) if self.side == "decode" else (its, mine)
        transcript = b"".join(map(msgspec.msgpack.encode, hellos))
        link.send(Proof(self._mac(b"proof", self.side, transcript)))
        proof = self._next(link, deadline)
        if not isinstance(proof, Proof):
            raise WireError(f"a {type(proof).__name__} message came in place of a Proof")
        other = _OTHER[self.side]
        if not hmac.compare_digest(proof.mac, self._mac(b"proof", other, transcript)):
            self._refuse(link, "the secrets of the two sides differ (--handover-key-file)")
        if self.key:
            link.secure(
                self._mac(b"frames", self.side, transcript), self._mac(b"frames", other, transcript)
            )
        link.group_bytes = self.group_bytes
        link.set_timeout(None)

    def _next(self, link: Link, deadline: float) -> object:
        link.set_timeout(max(deadline - time.monotonic(), 0.001))
        message, _ = link.receive()
        if isinstance(message, NotTaken):
            raise RefusedError(message.why)
        return message

    def _check(self, link: Link, its: Hello) -> None:
        its_name = f"the {its.side} engine"
        if its.protocol != PROTOCOL:
            self._refuse(link, f"{its_name} has protocol {its.protocol}, not {PROTOCOL}")
        if its.side != _OTHER[self.side]:
            self._refuse(link, f"both are {its.side} engines")
        if len(its.nonce) != _NONCE_BYTES:
            self._refuse(link, f"{its_name} has a nonce of {len(its.nonce)} bytes")
        if its.keyed != bool(self.key):
            which = its.side if its.keyed else self.side
            self._refuse(link, f"the {which} engine alone has a secret (--handover-key-file)")
        # The decode engine says whether kernels may differ: it is its answers that depend on them.
        decides = self.side == "decode"
        differences = self.identity.differences(its.identity, self.any_kernels or not decides)
        if differences:
            self._refuse(link, f"{its_name} has {'; '.join(differences)}")
        if its.group_bytes != self.group_bytes:
            what = f"blocks of {its.group_bytes} bytes, not {self.group_bytes}"
            self._refuse(link, f"{its_name} has {what}")

    def _refuse(self, link: Link, why: str) -> None:
        link.send(NotTaken(why))
        raise RefusedError(why)

    def _mac(self, purpose: bytes, side: Side, transcript: bytes) -> bytes:
        if not self.key:
            return b""
        return hmac.digest(self.key, purpose + side.encode() + transcript, "sha256")
